"""torch's dynamic rendezvous, with a check of its pickled state before it is unpickled."""

from __future__ import annotations

import io
import pickle
from datetime import timedelta
from typing import Any

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # exported, but not in __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousStateError,
    c10d_rendezvous_backend,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    Token,
    create_handler,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from stratagem.sdk.processes import serve_store
from stratagem_launch.torch_private import RENDEZVOUS_STATE, is_this_machine

_ALLOWED = {
    *(("datetime", name) for name in ("datetime", "timedelta", "timezone")),
    *RENDEZVOUS_STATE,
}
"""The classes in a rendezvous state. Unpickling them can't run arbitrary code."""


def create_checked(parameters: RendezvousParameters) -> RendezvousHandler | None:
    """Create a rendezvous as torch does, but check the pickled state in its store before it is unpickled.

    Returns None for backends that unpickle nothing.

    Args:
        parameters: as torch's registry takes them. The store of the backend "c10d" listens only at the endpoint; see
            `serve_store`.
    """
    if parameters.backend == "c10d":
        backend, store = _c10d(parameters)
    elif parameters.backend == "etcd-v2":
        from torch.distributed.elastic.rendezvous import etcd_rendezvous_backend

        backend, store = etcd_rendezvous_backend.create_backend(parameters)
    else:
        return None
    return create_handler(store, CheckedBackend(backend), parameters)


class CheckedBackend(RendezvousBackend):
    """Wraps another backend. A state that would run code when it is unpickled raises an error."""

    def __init__(self, inner: RendezvousBackend) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its version.

        Raises:
            RendezvousStateError: another program has written the value.
        """
        found = self._inner.get_state()
        if found is not None:
            _check(found[0])
        return found

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write a state if the stored version is still that of `token`; return the state stored afterwards.

        Raises:
            RendezvousStateError: another program has written the value.
        """
        found = self._inner.set_state(state, token)
        if found is not None:
            _check(found[0])
        return found


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _check(state: bytes) -> None:
    try:
        _StateUnpickler(io.BytesIO(state)).load()
    except Exception as error:
        raise RendezvousStateError(
            f"the rendezvous's store doesn't contain a state of the rendezvous ({error}): another program writes to "
            "that store; see docs/guides/security.md"
        ) from error


def _c10d(parameters: RendezvousParameters) -> tuple[RendezvousBackend, Store]:
    if parameters.get("store_type", "tcp").strip().lower() != "tcp":
        return c10d_rendezvous_backend.create_backend(parameters)
    store = _c10d_store(parameters)
    return c10d_rendezvous_backend.C10dRendezvousBackend(store, parameters.run_id), store


def _c10d_store(parameters: RendezvousParameters) -> TCPStore:
    """Serve the store if the endpoint is on this machine, otherwise connect to it, as torch does."""
    host, port = parse_rendezvous_endpoint(
        parameters.endpoint, default_port=c10d_rendezvous_backend.DEFAULT_PORT
    )
    timeout = timedelta(seconds=parameters.get_as_int("read_timeout", 60) or 60)
    is_host = parameters.get_as_bool("is_host")
    try:
        if is_this_machine(host) if is_host is None else is_host:
            try:
                return serve_store(host, port, timeout)
            except RuntimeError:
                # Several nodes may share this machine: another one may serve the store.
                if is_host:
                    raise
        return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    except (RuntimeError, ConnectionError) as error:
        raise RendezvousConnectionError(f"the store at {host}:{port} can't be reached: {error}") from error
