"""What a node tells others of itself; two real nodes are in tests/integration/test_two_nodes.py."""

from __future__ import annotations

import socket

import pytest

from stratagem.launchers.network import address_towards, gloo_variables, loopback_variables


def own_address() -> str:
    # A route is looked up, and nothing sent.
    return address_towards("192.0.2.1:1") or "127.0.0.1"


def named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Let this node's name resolve to an address, as /etc/hosts decides."""
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "gethostname", lambda: "this-node")
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *how, **more: real(address if host == "this-node" else host, *how, **more),
    )


@pytest.mark.parametrize(
    ("endpoint", "addresses"),
    [
        ("127.0.0.1:29400", ["127.0.0.1"]),
        ("http://127.0.0.1:2379", ["127.0.0.1"]),
        ("[::1]:29400", ["::1", None]),  # None: this machine has no IPv6
    ],
)
def test_towards_the_loopback_it_is_the_loopback(endpoint: str, addresses: list[str | None]) -> None:
    assert address_towards(endpoint) in addresses


@pytest.mark.parametrize("endpoint", ["", "nowhere.invalid:1", "127.0.0.1:port"])
def test_no_address_towards_what_is_none(endpoint: str) -> None:
    assert address_towards(endpoint) is None


@pytest.mark.skipif(own_address().startswith("127."), reason="this machine has no network but its loopback")
def test_gloo_is_told_an_interface_where_the_name_leads_to_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named(monkeypatch, "127.0.1.1")
    told = gloo_variables(f"{own_address()}:29400", {})
    assert told["GLOO_SOCKET_IFNAME"] in [name for _, name in socket.if_nameindex()]
    assert told["GLOO_SOCKET_IFNAME"] != "lo"


def test_gloo_is_told_nothing_where_the_name_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "192.0.2.7")
    assert gloo_variables(f"{own_address()}:29400", {}) == {}


def test_gloo_is_told_nothing_where_nodes_share_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.1")
    assert gloo_variables("127.0.0.1:29400", {}) == {}


def test_on_one_node_workers_listen_on_the_loopback() -> None:
    told = loopback_variables()
    assert set(told) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    assert set(told.values()) <= {"lo", "lo0"}


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.1")
    assert gloo_variables(f"{own_address()}:29400", {"GLOO_SOCKET_IFNAME": "ib0"}) == {}
