"""The launcher that a run began with may die, where the rendezvous is in an etcd server of its own.

`make test-etcd` installs what it needs: the server from apt (etcd-server), and python-etcd.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from elastic_nodes import EVERY, Nodes, check_each_sample_once

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        shutil.which("etcd") is None or find_spec("etcd") is None,
        reason="needs etcd-server from apt and python-etcd: make test-etcd",
    ),
]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[str]:
    """The endpoint of a real server."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    clients, peers = (f"http://127.0.0.1:{port}" for port in ports)
    command = [
        *("etcd", "--enable-v2", "--data-dir", str(tmp_path / "etcd"), "--name", "one"),
        *("--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers),
        *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}"),
    ]
    with open(tmp_path / "etcd.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(100):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", ports[0])) == 0:
                    break
            time.sleep(0.1)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    yield started
    started.end()


@pytest.mark.parametrize("backend", ["etcd-v2", "etcd"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_first_launcher_is_killed_and_another_joins(
    nodes: Nodes, etcd: str, strategy: str, backend: str
) -> None:
    flags = ("--num-nodes", "1:2", "--max-restarts", "3", "--strategy", strategy)
    flags += ("--rdzv-backend", backend, "--rdzv-endpoint", etcd)
    first = nodes.start(*flags)
    nodes.wait_until(lambda: any(step > EVERY for _, _, step, *_ in nodes.seen()))
    second = nodes.start(*flags)
    nodes.wait_until(lambda: nodes.seen_last() == 2)
    first.send_signal(signal.SIGKILL)
    nodes.wait_until(lambda: nodes.seen_last() == 1)
    third = nodes.start(*flags)
    nodes.wait_until(lambda: nodes.seen_last() == 2)
    nodes.go()
    assert second.wait(180) == 0, nodes.output()
    assert third.wait(60) == 0, nodes.output()
    check_each_sample_once(nodes, 1, 2, 1, 2)
