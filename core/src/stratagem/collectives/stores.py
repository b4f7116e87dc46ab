"""Stores through which processes find each other: the path of a file store, and the address of a TCP store."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported, but not in __all__

LOOPBACK = "127.0.0.1"
"""The address that only this machine reaches."""
_VARIABLE = "STRATAGEM_STORE"


def store_variables(folder: str, run_id: str, attempt: int) -> dict[str, str]:
    """Return the environment variables with which a worker finds its file store.

    Args:
        folder: a folder on this node that only this user can access.
        run_id: the worker's TORCHELASTIC_RUN_ID.
        attempt: number of the attempt. Each has its own file, because a killed worker may leave a broken one.
    """
    return {_VARIABLE: os.path.join(folder, f"store.{attempt}.{_digest(run_id)}")}


def store_file(environ: Mapping[str, str]) -> str | None:
    """Return the path of this worker's file store; None if its launcher has set none.

    The path contains a hash of the run id. If a worker starts another launcher, that one's workers inherit the
    variable, but have another run id.

    Args:
        environ: of this process.
    """
    path, run_id = environ.get(_VARIABLE, ""), environ.get("TORCHELASTIC_RUN_ID", "")
    return path if path.endswith(f".{_digest(run_id)}") else None


def _digest(run_id: str) -> str:
    return sha256(run_id.encode()).hexdigest()


def free_port() -> int:
    """Return a port of the loopback on which nothing listened a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def serve_store(address: str, port: int, timeout: timedelta = timedelta(minutes=5)) -> TCPStore:
    """Serve a store, only on `address` if that is possible.

    In two cases it listens on all of this node's addresses. Either `address` isn't one of them, such as behind a
    forwarded port. Or `address` is the node's own name and resolves to its loopback, which it doesn't on other nodes.

    Args:
        address: by which all processes find the store.
        port: of the store; 0 takes a free one.
        timeout: of requests to the store.

    Raises:
        RuntimeError: another process listens there.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported, but not in __all__

    listening = _listening(address, port)
    return TCPStore(
        address,
        port if listening is None else listening.getsockname()[1],
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,  # if this process serves a store there already, torch shares it
        master_listen_fd=None if listening is None else listening.detach(),
    )


def _listening(address: str, port: int) -> socket.socket | None:
    try:
        family, _, _, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        found = str(resolved[0])
        if _is_loopback(found) and address != "localhost" and not _is_loopback(address):
            return None
        listening = socket.socket(family)
    except OSError:
        return None  # torch reports it
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(resolved)
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        return None
    return listening


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
