"""Four launchers, then three, one, and four again, of one run whose global batch stays."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import four_nodes
import pytest
from elastic_nodes import EVERY, Nodes
from four_nodes import GLOBAL, LIMIT, SAMPLES, STEPS, STEPS_PER_EPOCH, Step, in_one_process
from stratagem_convert.formats.converting import read_weights
from stratagem_convert.formats.stored import WeightsReader

LEGS = ((4, 6), (3, 11), (1, 15), (4, 16))
"""How many launchers, and the step at which ranks wait until the number of launchers has changed."""
FOR_EVER = 10**6


class FourNodes(Nodes):
    """At most four launchers, which wait in their training for the test."""

    def let_train_until(self, step: int) -> None:
        """Let ranks begin each step before this one."""
        unfinished = self.folder / f"{LIMIT}.unfinished"
        unfinished.write_text(str(step))
        os.replace(unfinished, self.folder / LIMIT)

    def entries(self) -> list[dict[str, Any]]:
        """What each rank wrote of each micro-batch."""
        lines = [line for path in self.folder.glob("seen.*") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    def is_waiting(self, size: int, step: int) -> bool:
        """Whether the latest attempt has `size` ranks, all of which have come to `step`."""
        entries = self.entries()
        latest = max((entry["attempt"] for entry in entries), default=0)
        of_latest = [entry for entry in entries if entry["attempt"] == latest]
        there = [entry for entry in of_latest if entry["step"] == step]
        return {entry["size"] for entry in of_latest} == {size} and len(there) == size


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[FourNodes]:
    started = FourNodes(tmp_path)
    (tmp_path / "net.py").write_text(Path(four_nodes.__file__).read_text())
    yield started
    started.end()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_sharded"])
def test_four_then_three_then_one_then_four(nodes: FourNodes, strategy: str) -> None:
    """Each sample is once in each epoch; steps, rates, losses and weights are those of a plain loop."""
    flags = ("--num-nodes", "1:4", "--max-restarts", "9", "--global-batch-size", str(GLOBAL))
    flags += ("--max-epochs", str(four_nodes.EPOCHS), "--strategy", strategy)
    running: list[subprocess.Popen[bytes]] = []
    for size, step in LEGS:
        lost, running = running[size:], running[:size]
        end(lost)
        nodes.let_train_until(step)
        running += [nodes.start(*flags, "--node-rank", str(rank)) for rank in range(len(running), size)]
        nodes.wait_until(lambda size=size, step=step: nodes.is_waiting(size, step), 400)
        assert all(node.poll() is None for node in running), nodes.output()
    nodes.let_train_until(FOR_EVER)
    assert [node.wait(300) for node in running] == [0] * 4, nodes.output()
    compare(last_tries(nodes.entries()), nodes.folder / "run" / "checkpoints" / "last")


def end(launchers: list[subprocess.Popen[bytes]]) -> None:
    """Kill launchers at the same time; their workers die with them."""
    for launcher in launchers:
        launcher.kill()
    for launcher in launchers:
        launcher.wait()


def last_tries(entries: list[dict[str, Any]]) -> dict[int, Step]:
    """Step → what all ranks had in the last attempt at it; those before were lost with their attempt."""
    latest: dict[int, int] = {}
    for entry in entries:
        latest[entry["step"]] = max(entry["attempt"], latest.get(entry["step"], 0))
    steps: dict[int, Step] = {}
    for entry in entries:
        if entry["attempt"] == latest[entry["step"]]:
            step = steps.setdefault(entry["step"], Step(rate=entry["rate"]))
            step.numbers += entry["numbers"]
            step.loss += entry["loss"]
            assert entry["rate"] == step.rate
            assert entry["epoch"] == entry["step"] // STEPS_PER_EPOCH
    return steps


def compare(steps: dict[int, Step], checkpoint: Path) -> None:
    alone, weights = in_one_process()
    assert sorted(steps) == list(range(STEPS))
    for begin in range(0, STEPS, STEPS_PER_EPOCH):
        numbers = [n for step in range(begin, begin + STEPS_PER_EPOCH) for n in steps[step].numbers]
        assert Counter(numbers) == Counter(range(SAMPLES)), begin
    for index, step in enumerate(alone):
        assert sorted(steps[index].numbers) == sorted(step.numbers), index
        count = len(step.numbers)
        assert steps[index].loss / count == pytest.approx(step.loss / count, abs=1e-6), index
        assert steps[index].rate == pytest.approx(step.rate, abs=1e-12), index
    assert STEPS % EVERY == 0, "the checkpoint is of the last step"
    with WeightsReader(read_weights(str(checkpoint))) as reader:
        for name, tensor in weights.items():
            assert (reader.whole(f"net.{name}") - tensor).abs().max() < 1e-6, name
