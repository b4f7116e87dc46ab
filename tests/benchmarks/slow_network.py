"""A slow cable between two network namespaces: `tc netem`, or the same in user space where the kernel lacks it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from namespaces import INTERFACE, Node
from two_nodes import ADDRESSES, two_nodes

FORWARDER = Path(__file__).with_name("slow_forwarder.py")
MTU, QUEUE = 9000, 1000


@contextmanager
def slow_network(rate_mbit: float, delay_ms: float) -> Iterator[tuple[tuple[Node, Node], str]]:
    """Yield two nodes, each of which sends so much per second, `delay_ms` late; and what makes it slow.

    Args:
        rate_mbit: Mbit/s in each direction.
        delay_ms: one way.
    """
    with two_nodes() as nodes:
        netem = ("netem", "rate", f"{rate_mbit}mbit", "delay", f"{delay_ms}ms", "limit", str(QUEUE))
        commands = [
            ["tc", "-n", node.namespace, "qdisc", "add", "dev", INTERFACE, "root", *netem] for node in nodes
        ]
        if all(subprocess.run(command, capture_output=True).returncode == 0 for command in commands):
            yield nodes, "tc netem"
            return
        for node in nodes:
            subprocess.run(["ip", "-n", node.namespace, "link", "del", INTERFACE], check=True)
        names = [node.namespace for node in nodes]
        forwarder = subprocess.Popen(
            [sys.executable, FORWARDER, INTERFACE, *names, str(rate_mbit), str(delay_ms)],
            stdout=subprocess.PIPE,
        )
        try:
            assert forwarder.stdout is not None
            forwarder.stdout.readline()  # both devices are there
            for node, address in zip(nodes, ADDRESSES):
                inside = ["ip", "-n", node.namespace]
                subprocess.run([*inside, "address", "add", f"{address}/24", "dev", INTERFACE], check=True)
                subprocess.run([*inside, "link", "set", INTERFACE, "mtu", str(MTU), "up"], check=True)
            yield nodes, "a forwarder between TUN devices, for this kernel has no netem"
        finally:
            forwarder.kill()
            forwarder.wait()


def sent_bytes() -> int:
    """Return how many bytes this node has sent over the cable; in a process of the node."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())
