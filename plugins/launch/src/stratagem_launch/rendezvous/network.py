"""Find the address and the network interface at which other nodes can reach this one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
import threading
from collections.abc import Mapping

from stratagem.errors import ConfigError, short

_LOOK_UP_EVERY_S = 0.5
_SIOCGIFADDR = 0x8915
_GLOO = "GLOO_SOCKET_IFNAME"
_LOOPBACK_NAMES = ("lo", "lo0")


def address_towards(endpoint: str) -> str | None:
    """Return this node's address on the network that leads to `endpoint`.

    A node's own name often resolves to the loopback address, which other nodes can't reach. No packet is sent.

    Args:
        endpoint: "host:port", with or without "http://".
    """
    _, _, port = endpoint.rpartition(":")
    with contextlib.suppress(OSError, ValueError):
        found = socket.getaddrinfo(_host(endpoint), int(port), type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return None


def require_host(endpoint: str, wait_s: float) -> None:
    """Wait until the host name of `endpoint` resolves. A pod's name appears some time after the pod.

    Args:
        endpoint: "host" or "host:port", with or without "http://".
        wait_s: how long to keep trying. A name server that doesn't answer doesn't extend it.

    Raises:
        ConfigError: the name doesn't resolve in that time.
    """
    host = _host(endpoint)
    answered, given_up = threading.Event(), threading.Event()
    answers: list[Exception] = []

    def look_up() -> None:
        while not given_up.is_set():
            try:
                socket.getaddrinfo(host, None)
                answered.set()
                return
            except (OSError, UnicodeError) as error:
                answers.append(error)
            given_up.wait(_LOOK_UP_EVERY_S)

    threading.Thread(target=look_up, name="stratagem-look-up", daemon=True).start()
    try:
        if answered.wait(wait_s):
            return
    finally:
        given_up.set()
    last = answers[-1] if answers else "no name server answered"
    raise ConfigError(
        f"rdzv_endpoint={short(endpoint)} names {short(host)}, which had no address for {wait_s:g} s ({last}): give "
        "a name that every node can look up, or an address, or set rdzv_conf to wait longer, such as join_timeout=600"
    )


def gloo_variables(endpoint: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for workers so that gloo offers other nodes an address that they can reach.

    By default gloo offers the address that the node's own name resolves to. If that is the loopback, gloo is given
    the interface that leads to `endpoint`, unless `environ` sets one already.

    Args:
        endpoint: address of the rendezvous.
        environ: of the launching process.
    """
    if _GLOO in environ or not _name_is_local():
        return {}
    address = address_towards(endpoint)
    interface = None if address is None else _interface_of(address)
    return {} if interface is None else {_GLOO: interface}


def loopback_variables() -> dict[str, str]:
    """Return variables for the workers of a single node so that other machines can't reach their ports."""
    present = {name for _, name in socket.if_nameindex()}
    name = next((name for name in _LOOPBACK_NAMES if name in present), None)
    return {} if name is None else {_GLOO: name, "NCCL_SOCKET_IFNAME": name}


def _host(endpoint: str) -> str:
    address = endpoint.removeprefix("http://").removeprefix("https://")
    host, _, port = address.rpartition(":")
    return (host if port.isdecimal() else address).strip("[]")


def _name_is_local() -> bool:
    """Whether this node's name resolves to its loopback, or to nothing."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return True
    return ipaddress.ip_address(found[0][4][0]).is_loopback


def _interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an IPv4 address, on Linux; None if there is none.

    The loopback interface doesn't count: nodes that use it share a machine, and gloo uses it anyway.
    """
    if not sys.platform.startswith("linux") or ipaddress.ip_address(address).is_loopback:
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
