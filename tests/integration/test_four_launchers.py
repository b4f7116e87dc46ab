"""Four launchers, then three, one, and four again, of one run whose global batch stays."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import four_nodes
import pytest
from four_launchers import FOR_EVER, FourNodes, compare, end, last_tries
from four_nodes import GLOBAL

LEGS = ((4, 6), (3, 11), (1, 15), (4, 16))
"""How many launchers, and the step at which ranks wait until the number of launchers has changed."""


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
