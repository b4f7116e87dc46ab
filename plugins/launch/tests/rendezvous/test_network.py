"""What a node tells others of itself; two real nodes are in tests/integration/test_two_nodes.py."""

from __future__ import annotations

import socket
import threading

import pytest
from stratagem_launch.elastic import ElasticLauncher
from stratagem_launch.rendezvous.network import (
    address_towards,
    gloo_variables,
    loopback_variables,
    require_host,
)

from stratagem import LaunchPlan, Task
from stratagem.errors import ConfigError


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
def test_gloo_gets_an_interface_where_the_name_leads_to_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named(monkeypatch, "127.0.1.1")
    reported = gloo_variables(f"{own_address()}:29400", {})
    assert reported["GLOO_SOCKET_IFNAME"] in [name for _, name in socket.if_nameindex()]
    assert reported["GLOO_SOCKET_IFNAME"] != "lo"


def test_gloo_gets_no_interface_where_the_name_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "192.0.2.7")
    assert gloo_variables(f"{own_address()}:29400", {}) == {}


def test_gloo_gets_no_interface_where_nodes_share_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.1")
    assert gloo_variables("127.0.0.1:29400", {}) == {}


def test_on_one_node_workers_listen_on_the_loopback() -> None:
    reported = loopback_variables()
    assert set(reported) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    assert set(reported.values()) <= {"lo", "lo0"}


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.1")
    assert gloo_variables(f"{own_address()}:29400", {"GLOO_SOCKET_IFNAME": "ib0"}) == {}


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:29400", "localhost", "http://127.0.0.1:2379", "http://localhost", "[::1]:29400", "[::1]"],
)
def test_hosts_that_have_an_address_are_taken_at_once(endpoint: str) -> None:
    require_host(endpoint, 5)


def test_a_name_may_become_known_late(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def late(host: str, *how: object) -> list[object]:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", late)
    require_host("trainer-0.trainers:29400", 20)
    assert asked == ["trainer-0.trainers"] * 3


def test_an_unknown_name_is_refused_in_time() -> None:
    plan = LaunchPlan(1, num_nodes=2, rdzv_endpoint="nowhere.invalid:1", rdzv_conf={"join_timeout": "1"})
    with pytest.raises(ConfigError, match=r"'nowhere\.invalid', which had no address for 1 s .*join_timeout"):
        ElasticLauncher(plan).launch(Task(bool))


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: over.wait(60))
    with pytest.raises(ConfigError, match="no name server answered"):
        require_host("slow.example:1", 0.2)
    over.set()
