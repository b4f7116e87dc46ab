"""The device `sim` as PyTorch knows it: what `torch.sim` has once it is loaded."""

from __future__ import annotations

import atexit
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from stratagem.errors import ConfigError
from stratagem_sim.build import load_device
from stratagem_sim.torch_private import register_device_module

DELAYS = ("none", "random", "late")
"""Allowed values of `STRATAGEM_SIM_DELAY`."""
MAX_DEVICES = 16


@dataclass(frozen=True)
class SimSettings:
    """How the device behaves in this process; read from the environment once, when it is loaded."""

    devices: int = 2
    """`STRATAGEM_SIM_DEVICES`: how many there are, 1 to 16."""
    delay: str = "none"
    """`STRATAGEM_SIM_DELAY`: "none"; "random", a pause before each piece of work; or "late": work runs when something
    waits for it, or after `late_ms`."""
    seed: int = 0
    """`STRATAGEM_SIM_SEED`: of random pauses."""
    late_ms: int = 20
    """`STRATAGEM_SIM_LATE_MS`: after this many milliseconds late work runs, whether or not anything waits for it."""
    memory_bytes: int = 1 << 40
    """`STRATAGEM_SIM_MEMORY_BYTES`: memory of each device."""

    @classmethod
    def from_environ(cls) -> SimSettings:
        """Read the variables.

        Raises:
            ConfigError: one has a value that isn't allowed.
        """
        delay = os.environ.get("STRATAGEM_SIM_DELAY", cls.delay)
        if delay not in DELAYS:
            raise ConfigError(f"STRATAGEM_SIM_DELAY={delay!r} must be one of {', '.join(DELAYS)}")
        return cls(
            devices=_number("STRATAGEM_SIM_DEVICES", cls.devices, 1, MAX_DEVICES),
            delay=delay,
            seed=_number("STRATAGEM_SIM_SEED", cls.seed, 0, 2**63 - 1),
            late_ms=_number("STRATAGEM_SIM_LATE_MS", cls.late_ms, 1, 10_000),
            memory_bytes=_number("STRATAGEM_SIM_MEMORY_BYTES", cls.memory_bytes, 0, 1 << 50),
        )


def _number(variable: str, default: int, least: int, most: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdigit() or not least <= int(text) <= most:
        raise ConfigError(f"{variable}={text!r} must be a whole number from {least} to {most}")
    return int(text)


@dataclass
class Synchronizations:
    """Times that the host waited for the device."""

    count: int = 0
    places: list[str] = field(default_factory=list)
    """For each: what waited, and the line of Python that asked, innermost outside PyTorch."""


@cache
def load() -> ModuleType:
    """Build the device if needed, and register it with PyTorch as `sim`. Starts no thread.

    Raises:
        DeviceError: there is no C++ compiler, or the build failed.
        ConfigError: a variable has a value that isn't allowed.
    """
    settings = SimSettings.from_environ()
    native = load_device()
    native.configure(settings.devices, settings.delay, settings.seed, settings.late_ms, settings.memory_bytes)
    rename_privateuse1_backend("sim")
    # FSDP, DDP and PyTorch's random states look for these names.
    register_device_module("sim", _device_module(native, settings))
    generate_methods_for_privateuse1_backend()
    _register_process_group(native)
    # Threads that compute while the interpreter ends would use what has been destroyed.
    atexit.register(native.drain)
    return native


def synchronizations() -> int:
    """Return how often the host has waited for the device in this process."""
    return int(load().synchronizations())


@contextmanager
def count_synchronizations() -> Iterator[Synchronizations]:
    """Count each time that the host waits for the device within the block, and the line that made it wait."""
    native = load()
    seen = Synchronizations()

    def record(reason: str) -> None:
        seen.count += 1
        seen.places.append(f"{reason}: {_line_outside_torch()}")

    native.set_synchronization_callback(record)
    try:
        yield seen
    finally:
        native.set_synchronization_callback(None)


@dataclass(frozen=True)
class Work:
    """One piece of work that a device has done."""

    device: int
    stream: int
    """0 is the default stream."""
    name: str
    """Of the operator, as "aten::mm", or "copy to the device", "copy to the host", "copy"."""
    begin_ns: int
    end_ns: int


@contextmanager
def record_timeline() -> Iterator[list[Work]]:
    """Record what the devices do within the block, in the order in which it ends; the list is filled at its end.

    Waits for the devices at the end of the block.
    """
    native = load()
    native.drain()
    native.start_timeline()
    done: list[Work] = []
    try:
        yield done
    finally:
        native.drain()
        done += [
            Work(span.device, span.stream, span.name, span.begin_ns, span.end_ns)
            for span in native.stop_timeline()
        ]


def _line_outside_torch() -> str:
    inside = (str(Path(torch.__file__).parent), __file__)
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(inside):
            return f"{frame.filename}:{frame.lineno} {frame.line}"
    return "a thread of PyTorch"


def _device_module(native: ModuleType, settings: SimSettings) -> ModuleType:
    module = ModuleType("torch.sim")
    accelerator = torch.accelerator

    def index_of(device: Any = None) -> int:
        if device is None:
            return accelerator.current_device_index()
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return accelerator.current_device_index() if index is None else index

    def generator(device: Any = None) -> torch.Generator:
        found: torch.Generator = native.default_generator(index_of(device))
        return found

    def manual_seed_all(seed: int) -> None:
        for index in range(settings.devices):
            generator(index).manual_seed(seed)

    def get_rng_state(device: Any = None) -> torch.Tensor:
        return generator(device).get_state()

    def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
        generator(device).set_state(new_state)

    def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
        for index, state in enumerate(new_states):
            set_rng_state(state, index)

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        native.configure(
            settings.devices,
            settings.delay,
            settings.seed,
            settings.late_ms,
            int(fraction * settings.memory_bytes),
        )

    members: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: settings.devices,
        "current_device": accelerator.current_device_index,
        "set_device": lambda device: accelerator.set_device_index(index_of(device)),
        "get_device_name": lambda device=None: "sim, a device for tests",
        "device": lambda device: accelerator.device_index(index_of(device)),
        "Stream": torch.Stream,
        "Event": torch.Event,
        "stream": lambda stream: stream,
        "current_stream": lambda device=None: accelerator.current_stream(index_of(device)),
        "set_stream": accelerator.set_stream,
        "synchronize": lambda device=None: accelerator.synchronize(index_of(device)),
        "manual_seed": lambda seed: generator().manual_seed(seed),
        "manual_seed_all": manual_seed_all,
        "seed": lambda: generator().seed(),
        "initial_seed": lambda: generator().initial_seed(),
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state(index) for index in range(settings.devices)],
        "set_rng_state_all": set_rng_state_all,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
        "is_bf16_supported": lambda: True,
        "register_host_memory": native.register_host_memory,
        "unregister_host_memory": native.unregister_host_memory,
        "empty_cache": accelerator.empty_cache,
        "memory_allocated": lambda device=None: accelerator.memory_allocated(index_of(device)),
        "memory_reserved": lambda device=None: accelerator.memory_reserved(index_of(device)),
        "max_memory_allocated": lambda device=None: accelerator.max_memory_allocated(index_of(device)),
        "memory_stats": lambda device=None: accelerator.memory_stats(index_of(device)),
        "reset_peak_memory_stats": lambda device=None: accelerator.reset_peak_memory_stats(index_of(device)),
        "set_per_process_memory_fraction": set_per_process_memory_fraction,
        "mem_get_info": lambda device=None: accelerator.get_memory_info(index_of(device)),
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


def _register_process_group(native: ModuleType) -> None:
    import torch.distributed as dist

    if not dist.is_available():
        return

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return native.make_backend(dist.ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend("sim", create, devices=["sim"])
