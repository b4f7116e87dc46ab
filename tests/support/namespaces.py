"""Several machines on one: network namespaces that are joined by a bridge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

PREFIX = "stratagem"
INTERFACE = "eth0"


def address_of(rank: int) -> str:
    """Return the address of a machine."""
    return f"10.77.0.{rank + 1}"


@dataclass(frozen=True)
class Node:
    """One of the machines."""

    namespace: str
    rank: int

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before a command that runs there."""
        return ("ip", "netns", "exec", self.namespace)

    def start(self, command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        """Start a command there."""
        inside = [*self.prefix, *command]
        return subprocess.Popen(
            inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **how
        )


def why_not() -> str | None:
    """Say why there can't be namespaces here; None where there can."""
    if shutil.which("ip") is None:
        return "needs the command ip (Debian's package iproute2)"
    probe = f"stratagem-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces aren't permitted: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


@contextmanager
def machines(count: int) -> Iterator[list[Node]]:
    """Make machines that reach each other and nothing else; nothing is left of them afterwards."""
    _remove_forgotten()
    nodes = [Node(f"{PREFIX}-{rank}-{os.getpid()}", rank) for rank in range(count)]
    first = nodes[0].namespace
    with ExitStack() as stack:
        for node in nodes:
            _ip("netns", "add", node.namespace)
            stack.callback(_remove, node)
        _ip("-n", first, "link", "add", INTERFACE, "type", "bridge")
        for node in nodes:
            name = node.namespace
            if node.rank > 0:
                port = f"port{node.rank}"
                there = ("type", "veth", "peer", "name", port, "netns", first)
                _ip("link", "add", INTERFACE, "netns", name, *there)
                _ip("-n", first, "link", "set", port, "master", INTERFACE, "up")
            _ip("-n", name, "address", "add", f"{address_of(node.rank)}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", name, "link", "set", interface, "up")
        yield nodes


def _remove_forgotten() -> None:
    """Remove the nodes of tests that were killed before they could."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name = line.split()[0]
        made = re.fullmatch(rf"{PREFIX}-[0-9]+-(\d+)", name)
        if made and not psutil.pid_exists(int(made[1])):
            _remove(Node(name, 0))


def _remove(node: Node) -> None:
    """End what still runs there, and remove it with its interfaces."""
    left = subprocess.run(["ip", "netns", "pids", node.namespace], capture_output=True, text=True).stdout
    for process in left.split():
        subprocess.run(["kill", "-9", process], capture_output=True)
    _ip("netns", "del", node.namespace)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
