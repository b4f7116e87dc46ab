"""Runs that keep no checkpoint on any disk go on from memory, after a rank or a whole node is gone."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_nodes import EVERY, Nodes, check_each_sample_once

pytestmark = pytest.mark.timeout(400)

STRATEGIES = [
    "ddp_sharded",
    pytest.param("ddp", marks=pytest.mark.soak),
    pytest.param("fsdp", marks=pytest.mark.soak),
]
NOTHING_ON_DISK = "trainer: {enable_checkpointing: false}\n"
IN_MEMORY = ("--checkpoint-memory", str(EVERY))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    (tmp_path / "every.yaml").write_text(NOTHING_ON_DISK)
    yield started
    started.end()


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """Stands for the memories of machines: a folder each, which is removed as the machine is lost."""
    folder = Path(tempfile.mkdtemp(prefix="stratagem-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def restarts(nodes: Nodes) -> list[int]:
    """The step that each attempt but the first began with."""
    seen = nodes.seen()
    attempts = sorted({attempt for attempt, *_ in seen})
    return [min(step for a, _, step, *_ in seen if a == attempt) for attempt in attempts][1:]


def refuse_disk(nodes: Nodes) -> None:
    """What was never written was never read."""
    assert not list((nodes.folder / "run").rglob("*.safetensors"))
    assert "resuming from peers://step=" in nodes.output()


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_of_four_ranks_is_killed(nodes: Nodes, tmpfs: Path, strategy: str) -> None:
    flags = (*IN_MEMORY, "--max-restarts", "1", "--devices", "4", "--strategy", strategy)
    node = nodes.start(*flags, STRATAGEM_TMPFS=str(tmpfs))
    nodes.wait_until(lambda: any(step > EVERY + 1 for _, _, step, *_ in nodes.seen()))
    os.kill(min(int(path.suffix[1:]) for path in nodes.folder.glob("seen.*")), signal.SIGKILL)
    nodes.go()
    assert node.wait(180) == 0, nodes.output()
    check_each_sample_once(nodes, 4, 4)
    reached = max(step for attempt, _, step, *_ in nodes.seen() if attempt == 0)
    assert restarts(nodes) >= [reached - EVERY]
    refuse_disk(nodes)
    assert list(tmpfs.iterdir()) == []


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["ddp", "ddp_sharded", "fsdp"])
def test_one_of_two_nodes_is_lost_and_another_comes(nodes: Nodes, tmpfs: Path, strategy: str) -> None:
    flags = (*IN_MEMORY, "--num-nodes", "1:2", "--max-restarts", "2", "--strategy", strategy)
    memory = [tmpfs / str(number) for number in range(3)]
    for folder in memory:
        folder.mkdir()
    stays = nodes.start(*flags, "--node-rank", "0", STRATAGEM_TMPFS=str(memory[0]))
    lost = nodes.start(*flags, "--node-rank", "1", STRATAGEM_TMPFS=str(memory[1]))
    nodes.wait_until(lambda: any(size == 2 and step > EVERY + 1 for _, size, step, *_ in nodes.seen()))
    lost.send_signal(signal.SIGKILL)
    lost.wait()
    shutil.rmtree(memory[1])
    nodes.wait_until(lambda: nodes.seen_last() == 1)
    comes = nodes.start(*flags, "--node-rank", "1", STRATAGEM_TMPFS=str(memory[2]))
    nodes.wait_until(lambda: nodes.seen_last() == 2)
    nodes.go()
    assert stays.wait(180) == 0, nodes.output()
    assert comes.wait(60) == 0, nodes.output()
    check_each_sample_once(nodes, 2, 1, 2)
    refuse_disk(nodes)
