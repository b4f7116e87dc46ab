"""Where a store listens, and which file is one."""

from __future__ import annotations

import socket

import psutil
import pytest

from stratagem.collectives.stores import serve_store, store_file, store_variables


def addresses(port: int) -> set[str]:
    """On which addresses this process listens at a port."""
    found = psutil.Process().net_connections("inet")
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN and c.laddr.port == port}


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_store_listens_on_its_own_address_alone(address: str) -> None:
    store = serve_store(address, 0)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert addresses(store.port) in ({"127.0.0.1"}, {"::1"})


def test_a_node_whose_own_name_is_its_loopback_is_reached_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *how, **more: real("127.0.1.1" if host == name else host, *how, **more),
    )
    name = socket.gethostname()
    assert not addresses(serve_store(name, 0).port) & {"127.0.0.1", "127.0.1.1"}


def test_the_same_process_may_serve_it_again() -> None:
    first = serve_store("127.0.0.1", 0)
    second = serve_store("127.0.0.1", first.port)
    first.set("key", "value")
    assert second.get("key") == b"value"


def test_the_store_of_an_outer_launch_is_not_taken_for_its_own() -> None:
    variables = store_variables("/folder", "outer", 0)
    outer = {"TORCHELASTIC_RUN_ID": "outer", **variables}
    assert str(store_file(outer)).startswith("/folder/store.0.")
    assert store_file({**outer, "TORCHELASTIC_RUN_ID": "inner"}) is None
    assert store_file(variables) is None
    assert store_file({"TORCHELASTIC_RUN_ID": "outer"}) is None
