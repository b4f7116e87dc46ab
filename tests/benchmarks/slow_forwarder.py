"""The process between two TUN devices in network namespaces: forwards packets at a rate, and late, as netem does.

python tests/benchmarks/slow_forwarder.py INTERFACE NAMESPACE NAMESPACE MBIT_PER_S DELAY_MS
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

CLONE_NEWNET, TUNSETIFF, IFF_TUN_NO_PI = 0x40000000, 0x400454CA, 0x1001
LARGEST, QUEUE = 9100, 1000


class Direction:
    """Packets from one device to the other: as netem, at a rate, and then late."""

    def __init__(self, source: int, target: int, rate_mbit: float, delay_s: float) -> None:
        self.source, self.target = source, target
        self.seconds_per_byte, self.delay_s = 8 / (rate_mbit * 1e6), delay_s
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.free_at = 0.0

    def take(self) -> None:
        packet, now = os.read(self.source, LARGEST), time.perf_counter()
        if len(self.waiting) < QUEUE:  # and otherwise it is lost
            self.free_at = max(now, self.free_at) + len(packet) * self.seconds_per_byte
            self.waiting.append((self.free_at + self.delay_s, packet))

    def send_due(self) -> float:
        """Send what is due, and return in how many seconds the next is."""
        while self.waiting:
            left = self.waiting[0][0] - time.perf_counter()
            if left > 0:
                return left
            packet = self.waiting.popleft()[1]
            with suppress(OSError):  # the device isn't up yet: the packet is lost
                os.write(self.target, packet)
        return 1.0


def tun_device(interface: str, namespace: str) -> int:
    """Make a TUN device in a namespace, which this process enters, and return what it is read and written by."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"can't enter {namespace}")
    os.close(descriptor)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", interface.encode(), IFF_TUN_NO_PI))
    return device


def forward(interface: str, first: str, second: str, rate_mbit: float, delay_ms: float) -> None:
    devices = [tun_device(interface, each) for each in (first, second)]
    ways = [Direction(*ends, rate_mbit, delay_ms / 1000) for ends in (devices, devices[::-1])]
    print("ready", flush=True)
    while True:
        wait_s = min(way.send_due() for way in ways)
        readable, _, _ = select.select(devices, [], [], wait_s)
        for way in ways:
            if way.source in readable:
                way.take()


if __name__ == "__main__":
    forward(*sys.argv[1:4], *map(float, sys.argv[4:]))
