"""Compositions on machines that are lost and come back: network namespaces on this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import four_nodes
import pytest
from four_launchers import FOR_EVER, FourNodes, compare, end, last_tries
from four_nodes import GLOBAL
from namespaces import Node, address_of, machines, why_not

SPLIT = "strategy.axis_options={tensor: {parallelize: {net.0: colwise, net.2: rowwise}}}"


@pytest.fixture(scope="module")
def four_machines() -> Iterator[list[Node]]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with machines(4) as made:
        yield made


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[FourNodes]:
    started = FourNodes(tmp_path)
    started.address = address_of(0)
    (tmp_path / "net.py").write_text(Path(four_nodes.__file__).read_text())
    yield started
    started.end()


def of_data_ranks(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the second rank of each pair that reads the same batches."""
    return [entry for entry in entries if entry["rank"] % 2 == 0]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "strategy", ["replicate+tensor=2", "shard+tensor=2", "pipeline=2+replicate", "pipeline=2+shard"]
)
def test_two_by_two_goes_on_as_one_by_two_and_grows_again(
    four_machines: list[Node], nodes: FourNodes, strategy: str
) -> None:
    """Each sample is once in each epoch; steps, rates, losses and weights are those of a plain loop."""
    flags = ("--num-nodes", "2:4", "--max-restarts", "9", "--global-batch-size", str(GLOBAL))
    flags += ("--max-epochs", str(four_nodes.EPOCHS), "--strategy", strategy)
    if "tensor" in strategy:
        flags += ("--set", SPLIT)

    def start(machine: Node) -> Any:
        return nodes.start(*flags, "--node-rank", str(machine.rank), prefix=machine.prefix)

    nodes.let_train_until(6)
    running = [start(machine) for machine in four_machines]
    nodes.wait_until(lambda: nodes.is_waiting(4, 6), 400)

    end([running.pop()])
    nodes.let_train_until(11)
    nodes.wait_until(lambda: nodes.is_waiting(2, 11), 400)
    assert "3 machines are here, and 2 take part" in nodes.output()

    running.append(start(four_machines[3]))
    nodes.let_train_until(16)
    nodes.wait_until(lambda: nodes.is_waiting(4, 16), 400)
    assert all(node.poll() is None for node in running), nodes.output()
    nodes.let_train_until(FOR_EVER)
    assert [node.wait(300) for node in running] == [0] * 4, nodes.output()
    compare(last_tries(of_data_ranks(nodes.entries())), nodes.folder / "run" / "checkpoints" / "last")
