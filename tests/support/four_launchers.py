"""Four launchers of one run, and the comparison of what they trained with a plain loop in one process."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from elastic_nodes import EVERY, Nodes
from four_nodes import LIMIT, SAMPLES, STEPS, STEPS_PER_EPOCH, Step, in_one_process
from stratagem_convert.formats.converting import read_weights
from stratagem_convert.formats.stored import WeightsReader

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

    def is_waiting(self, size: int, step: int, writers: int | None = None) -> bool:
        """Whether the latest attempt has `size` ranks, and all that write have come to `step`.

        Args:
            size: number of ranks.
            step: of the optimizer.
            writers: number of ranks that write, as those of a pipeline's last stage; all by default.
        """
        entries = self.entries()
        latest = max((entry["attempt"] for entry in entries), default=0)
        of_latest = [entry for entry in entries if entry["attempt"] == latest]
        there = [entry for entry in of_latest if entry["step"] == step]
        return {entry["size"] for entry in of_latest} == {size} and len(there) == (writers or size)


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


def compare(steps: dict[int, Step], checkpoint: Path | None) -> None:
    """Assert that steps, and the weights of the last one's checkpoint, are those of a plain loop."""
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
    if checkpoint is None:
        return
    assert STEPS % EVERY == 0, "the checkpoint is of the last step"
    with WeightsReader(read_weights(str(checkpoint))) as reader:
        for name, tensor in weights.items():
            assert (reader.whole(f"net.{name}") - tensor).abs().max() < 1e-6, name
