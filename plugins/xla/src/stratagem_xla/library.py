"""torch_xla as it is installed: whether it fits, which devices PJRT can have. Imports it only in `load`."""

from __future__ import annotations

import logging
import os
import warnings
from ctypes.util import find_library
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import importlib_metadata

from stratagem_xla.plugin import INSTALL

OLDEST = (2, 9)
OWN_DEVICE = "STRATAGEM_XLA_OWN_DEVICE"
"""Variable that is set where a process has one device, and sees no other."""
LOGGER = logging.getLogger("torch_xla")

_GOOGLE, _CORES = "0x1ae0", {"0x0027": 2, "0x005e": 1, "0x0063": 1, "0x006f": 1, "0x0076": 2}
"""PCI vendor, and by PCI device how many XLA devices a chip is."""


def problem() -> str | None:
    """Why torch_xla can't be used here; None where it can. Imports nothing."""
    if find_spec("torch_xla") is None:
        return f"torch_xla isn't installed: {INSTALL}"
    ours, torch = importlib_metadata.version("torch_xla"), importlib_metadata.version("torch")
    if _minor(ours) < OLDEST:
        return f"torch_xla {ours} is older than {'.'.join(map(str, OLDEST))}: {INSTALL} --upgrade"
    if _minor(ours) != _minor(torch):
        wanted = ".".join(map(str, _minor(ours)))
        return f"torch_xla {ours} only works with torch {wanted}, and torch {torch} is installed: {INSTALL}"
    return None


def device_type() -> str:
    """Which kind of device PJRT will have in this process: what PJRT_DEVICE names, or TPU where there is one."""
    return os.environ.get("PJRT_DEVICE") or ("TPU" if tpu_devices() else "CPU")


def device_problem(kind: str) -> str | None:
    """Why PJRT can't have devices of a kind, as "TPU"; None where it can, as far as can be known beforehand."""
    named = f"PJRT_DEVICE={kind} names" if os.environ.get("PJRT_DEVICE") == kind else f"{kind} is"
    if kind == "CPU":
        return None
    if kind == "TPU":
        if not tpu_devices():
            return f"{named} a device that this machine hasn't: there is no TPU on its PCI bus"
        if find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
            return "a TPU, but no libtpu: pip install 'torch_xla[tpu]'"
        return None
    installed = _vendors()
    if kind not in installed:
        known = ", ".join(sorted({"CPU", "TPU"} | installed))
        return f"{named} a device for which torch_xla has no plugin here: allowed are {known}"
    return None


def _vendors() -> set[str]:
    """Whose devices have a PJRT plugin here. torch_xla names some itself, whose libraries come from elsewhere."""
    entries = importlib_metadata.entry_points(group="torch_xla.plugins")
    found = {entry.name.upper() for entry in entries if not entry.value.startswith("torch_xla.")}
    if find_spec("libneuronxla"):
        found.add("NEURON")
    if "XPU_LIBRARY_PATH" in os.environ or find_library("xpu"):
        found.add("XPU")
    return found


def device_count(kind: str) -> int:
    """How many devices of a kind there are; for the CPU, CPU_NUM_DEVICES, or one per usable core."""
    if kind == "TPU":
        return tpu_devices()
    value = os.environ.get(f"{kind}_NUM_DEVICES", "")
    if value.isdigit():
        return int(value)
    return (os.cpu_count() or 1) if kind == "CPU" else 1


def tpu_devices(pci: Path = Path("/sys/bus/pci/devices")) -> int:
    """How many XLA devices this machine's TPU chips are."""
    count = 0
    for vendor in pci.glob("*/vendor"):
        if vendor.read_text().strip() == _GOOGLE:
            count += _CORES.get((vendor.parent / "device").read_text().strip(), 0)
    return count


@lru_cache(maxsize=1)
def load() -> ModuleType:
    """Import torch_xla; what it logs and warns of meanwhile becomes records of the logger `torch_xla`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("PJRT_DEVICE", device_type())
    root = logging.getLogger()
    before = list(root.handlers)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        import torch_xla
    for handler in root.handlers[:]:
        # It calls logging.basicConfig, which would send every library's records to the terminal.
        if handler not in before:
            root.removeHandler(handler)
    for warning in warned:
        LOGGER.info("%s: %s", warning.category.__name__, warning.message)
    module: ModuleType = torch_xla
    return module


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
