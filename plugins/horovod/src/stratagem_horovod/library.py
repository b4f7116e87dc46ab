"""Horovod's package: whether it is there, and importing it. Imports it only in `load` and `rendezvous_server`."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import importlib_metadata

from stratagem import ConfigError
from stratagem_horovod.plugin import INSTALL

TRIED = "0.28.1"


def require() -> None:
    """Refuse a run for which Horovod isn't there, or was built without PyTorch. Imports nothing of it.

    Raises:
        ConfigError: says what to install.
    """
    found = find_spec("horovod")
    if found is None or found.origin is None:
        raise ConfigError(f"strategy 'horovod' needs the package horovod, which isn't installed: {INSTALL}")
    if not list((Path(found.origin).parent / "torch").glob("mpi_lib_v2*")):
        raise ConfigError(
            f"strategy 'horovod' needs Horovod with PyTorch, and the one installed was built without: {INSTALL}"
        )
    version = importlib_metadata.version("horovod")
    if version != TRIED:
        warnings.warn(
            f"horovod {version} is another than this strategy was tried with, {TRIED}",
            UserWarning,
            stacklevel=2,
        )


def load() -> Any:
    """Import and return `horovod.torch`.

    Raises:
        ConfigError: it was built for another PyTorch.
    """
    import horovod.torch as hvd

    if not hasattr(hvd, "init"):
        raise ConfigError(f"Horovod can't be loaded, as it was built for another PyTorch: {INSTALL}")
    return hvd


def has_gpus() -> bool:
    """Whether Horovod was built with CUDA."""
    return bool(load().cuda_built() or load().nccl_built())


def rendezvous_server(address: str) -> Any:
    """Return an HTTP server, not serving yet, at which Horovod's processes tell each other where they listen."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    return RendezvousHTTPServer((address, 0), RendezvousHandler, False)
