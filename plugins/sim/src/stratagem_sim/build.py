"""Builds the device with the C++ compiler of this machine, once for each version of PyTorch and Python.

`python -m stratagem_sim.build` builds it ahead of its first use.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import torch

from stratagem.errors import DeviceError

_SOURCES = Path(__file__).parent / "csrc"
_NAME = "stratagem_sim_device"


def compiler() -> str | None:
    """Return the C++ compiler: `CXX`, or g++ or clang++ on the PATH; None where there is none."""
    return shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")


def is_built() -> bool:
    """Return whether the device is in the cache, so that using it takes no minute."""
    return _library().exists()


def load_device() -> ModuleType:
    """Build the device where no build is cached, and import it.

    Processes that need it at the same time wait for the one that builds. The lock goes with its process, so
    that one that was killed blocks no one.

    Raises:
        DeviceError: there is no compiler, or it failed; says what it printed.
    """
    library = _library()
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with (library.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _build(library)
    spec = importlib.util.spec_from_file_location(_NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _library() -> Path:
    return _cache() / _fingerprint() / f"{_NAME}.so"


def _cache() -> Path:
    if chosen := os.environ.get("STRATAGEM_SIM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratagem-sim"


def _flags() -> list[str]:
    from torch.utils.cpp_extension import include_paths

    includes = [*include_paths(), sysconfig.get_paths()["include"]]
    return [
        "-std=c++20",
        "-O1",
        "-fPIC",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DTORCH_EXTENSION_NAME={_NAME}",
        *(part for path in includes for part in ("-isystem", path)),
    ]


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{torch.__version__} {sys.version} {_flags()} {compiler()}".encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(library: Path) -> None:
    found = compiler()
    if found is None:
        raise DeviceError(
            "accelerator 'sim' is built when it is first used, and found no C++ compiler: install g++, or set CXX"
        )
    torch_libraries = Path(torch.__file__).parent / "lib"
    # The library gets its name once it is whole.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        sources = {f"{folder}/{source.stem}.o": source for source in sorted(_SOURCES.glob("*.cpp"))}
        flags = _flags()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = [
                pool.submit(_run, [found, *flags, "-c", str(source), "-o", target])
                for target, source in sources.items()
            ]
            for each in compiled:
                each.result()
        names = ("c10", "torch_cpu", "torch", "torch_python")
        libraries = [f"-L{torch_libraries}", *(f"-l{name}" for name in names)]
        whole = Path(folder) / library.name
        _run([found, "-shared", *sources, *libraries, "-pthread", "-o", str(whole)])
        whole.replace(library)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line][:5]
        raise DeviceError(
            f"building accelerator 'sim' failed ({command[0]} exited with {done.returncode}): "
            + (" | ".join(errors) or done.stderr[-500:])
        )


if __name__ == "__main__":
    load_device()
