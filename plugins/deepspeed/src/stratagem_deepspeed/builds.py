"""Extensions that the engine compiles on first use. One process per machine announces and compiles them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem import ConfigError
from stratagem_deepspeed import output

if TYPE_CHECKING:
    from stratagem import Collectives
    from stratagem_deepspeed.configuration import Configuration

FORGOTTEN_S = 1800.0
"""Age at which a lock file counts as left behind, on systems that can't tell which process has it open."""

_FUSED = {
    "adam": "FusedAdam",
    "adamw": "FusedAdam",
    "muon": "FusedAdam",
    "lamb": "FusedLamb",
    "lion": "FusedLion",
}
_ON_CPU = {
    "adam": "CPUAdam",
    "adamw": "CPUAdam",
    "muon": "CPUAdam",
    "adagrad": "CPUAdagrad",
    "lion": "CPULion",
}
_AIO = "#include <libaio.h>\nint main() { return io_destroy(0); }\n"


def needed(configuration: Configuration) -> list[str]:
    """Return the extensions that the engine is going to load: names of its builders, without "Builder"."""
    names = []
    optimizer = configuration.tree.get("optimizer") or {}
    if not (optimizer.get("params") or {}).get("torch_adam"):
        table = _ON_CPU if configuration.offload_optimizer != "none" else _FUSED
        names += [table[kind] for kind in [str(optimizer.get("type", "")).lower()] if kind in table]
    if "nvme" in (configuration.offload_optimizer, configuration.offload_parameters):
        names.append("AsyncIO")
    return names


def check(configuration: Configuration) -> None:
    """Refuse a run that needs an extension which can't be compiled here. Called in the launching process.

    Raises:
        ConfigError: names the missing compiler or library, and how to install it.
    """
    missing = [name for name in needed(configuration) if not _built(name)]
    if not missing:
        return
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"deepspeed compiles {' and '.join(missing)} on first use, and there is no C++ compiler {compiler!r}: "
            "install one (apt install g++), or name it by CXX"
        )
    if "AsyncIO" in missing and not _links(compiler):
        raise ConfigError(
            "offloading to nvme needs libaio with its headers, which aren't here: install them (apt install "
            "libaio-dev), or offload to cpu"
        )


def make(configuration: Configuration, collectives: Collectives) -> None:
    """Compile missing extensions on the first rank of each machine, then load them on every rank. Collective.

    Raises:
        ConfigError: an extension can't be compiled. Raised on every rank.
    """
    names = needed(configuration)
    if collectives.local_rank == 0:
        remove_forgotten_locks()
    problem = _load(names, announce=True) if collectives.local_rank == 0 else ""
    problems = [each for each in collectives.gather_objects(problem) if each]
    if not problems and names and collectives.local_rank != 0:
        problem = _load(names, announce=False)
        problems = [problem] if problem else []
    if problems:
        raise ConfigError(problems[0])


def remove_forgotten_locks() -> list[Path]:
    """Remove lock files of killed builds: every later build would wait for them for ever."""
    removed = []
    for lock in _root().glob("*/lock"):
        if _is_forgotten(lock):
            with contextlib.suppress(OSError):
                lock.unlink()
                removed.append(lock)
    return removed


def _load(names: list[str], announce: bool) -> str:
    from deepspeed.ops import op_builder

    for name in names:
        builder: Any = getattr(op_builder, f"{name}Builder")()
        try:
            with output.kept(), _with_own_ninja(), _announced(name if announce and not _built(name) else ""):
                builder.load(verbose=False)
        except Exception as error:
            said = str(error).strip().splitlines()
            return (
                f"deepspeed's extension {name} can't be compiled: {said[0] if said else type(error).__name__}; the "
                f"whole output is in the run's folder, and {_root()} has what was made so far"
            )
    return ""


@contextlib.contextmanager
def _with_own_ninja() -> Iterator[None]:
    """Put this environment's ninja first on the path.

    Without an activated environment, another ninja comes first. Versions of ninja hash commands differently, so
    that one version considers the output of another outdated and compiles everything again.
    """
    if find_spec("ninja") is None:
        yield
        return
    import ninja

    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{ninja.BIN_DIR}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


@contextlib.contextmanager
def _announced(name: str) -> Iterator[None]:
    if not name:
        yield
        return
    from rich.console import Console

    text = f"deepspeed compiles {name}, once on this machine: this takes minutes"
    console = Console(file=sys.stderr, stderr=True)
    began = time.monotonic()
    if not console.is_terminal:
        console.print(text)
    with console.status(text):
        yield
    console.print(f"deepspeed compiled {name} in {time.monotonic() - began:.0f} s")


def _built(name: str) -> bool:
    import re

    # FusedAdam is made as fused_adam, CPUAdam as cpu_adam, AsyncIO as async_io.
    made = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=CPU)(?=[A-Z])", "_", name).lower()
    return any((_root() / made).glob("*.so"))


def _root() -> Path:
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given)
    import torch
    from torch.utils.cpp_extension import get_default_build_root

    kind = f"cu{torch.version.cuda.replace('.', '')}" if torch.version.cuda else "cpu"
    python = f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    return Path(get_default_build_root()) / f"{python}_{kind}"


def _links(compiler: str) -> bool:
    command = [compiler, "-x", "c++", "-", "-o", os.devnull, "-laio"]
    return subprocess.run(command, input=_AIO, text=True, capture_output=True, check=False).returncode == 0


def _is_forgotten(lock: Path) -> bool:
    """Whether no process has the lock file open. The process that builds keeps it open."""
    processes = Path("/proc")
    if not (processes / "self" / "fd").is_dir():
        with contextlib.suppress(OSError):
            return time.time() - lock.stat().st_mtime > FORGOTTEN_S
        return False
    target = str(lock.resolve())
    for folder in processes.glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(each) == target for each in folder.iterdir()):
                return False
    return True
