"""Build Horovod from its source for this environment's PyTorch, and install it: `python -m stratagem_horovod.build`.

There are no wheels of it. With Open MPI's headers (apt-get install libopenmpi-dev openmpi-bin) it is built with MPI,
too, and by the variables of Horovod's own documentation for GPUs, as HOROVOD_GPU_OPERATIONS=NCCL.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import importlib_metadata

VERSION = "0.28.1"
NEEDED = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "setuptools<81")
"""What Horovod imports: of the last one distutils, which Python 3.12 has no more."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Install Horovod; build it first, unless a wheel for this PyTorch was kept.

    Args:
        arguments: of the command line; this process's when None.
    """
    parser = argparse.ArgumentParser(prog="python -m stratagem_horovod.build", description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the wheel there, for the next time")
    keep = parser.parse_args(arguments).keep
    lacking = [tool for tool in ("cmake", "make", os.environ.get("CXX", "g++")) if not shutil.which(tool)]
    with tempfile.TemporaryDirectory(prefix="stratagem-horovod-") as folder:
        wheels = Path(keep or folder) / _built_for()
        if not list(wheels.glob("horovod-*.whl")):
            if lacking:
                sys.exit(
                    f"Horovod is built from its source, and {', '.join(lacking)} isn't installed: install it"
                )
            _pip("install", *NEEDED, "wheel")
            print(f"Building Horovod {VERSION} into {wheels}, which takes some 10 minutes", flush=True)
            # A wheel that pip has kept may have been built for another PyTorch.
            building = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "--no-binary", "horovod")
            _pip("wheel", *building, "-w", str(wheels), f"horovod=={VERSION}", environ=_environ(Path(folder)))
        _pip("install", *NEEDED)
        _pip("install", "--no-deps", "--force-reinstall", *map(str, wheels.glob("horovod-*.whl")))


def _built_for() -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    return f"python{python}-torch{importlib_metadata.version('torch')}{'-mpi' if _has_mpi() else ''}"


def _has_mpi() -> bool:
    return shutil.which("mpicxx") is not None and "HOROVOD_WITHOUT_MPI" not in os.environ


def _environ(folder: Path) -> dict[str, str]:
    """Return variables for the build; those that are set already win."""
    # Horovod's CMakeLists.txt ask for C++14, and PyTorch's headers for C++17: the last option counts.
    compiler = folder / "c++17"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which(os.environ.get("CXX", "g++"))} "$@" -std=gnu++17\n')
    compiler.chmod(0o755)
    with_mpi = {"HOROVOD_WITH_MPI": "1"} if _has_mpi() else {"HOROVOD_WITHOUT_MPI": "1"}
    ours = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        **with_mpi,
    }
    # Called by make, its own MAKEFLAGS would be ours.
    return {**ours, **os.environ, "CXX": str(compiler), "MAKEFLAGS": f"-j{os.cpu_count()}"}


def _pip(*arguments: str, environ: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], env=environ, check=False
    )
    if done.returncode:
        sys.exit(f"pip {arguments[0]} failed: see above why")


if __name__ == "__main__":
    main()
