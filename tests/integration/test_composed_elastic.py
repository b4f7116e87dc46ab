"""Compositions on machines that are lost and come back: network namespaces on this one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import four_nodes
import pytest
from elastic_nodes import EVERY
from four_launchers import FOR_EVER, FourNodes, compare, end, last_tries
from four_nodes import GLOBAL
from namespaces import Node, address_of, machines, why_not

NOTHING_ON_DISK = "trainer: {enable_checkpointing: false}\n"
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


def of_data_ranks(entries: list[dict[str, Any]], strategy: str) -> list[dict[str, Any]]:
    """Leave out the second rank of each pair with the same batches. Of a pipeline, the last stage alone writes."""
    return [entry for entry in entries if "pipeline" in strategy or entry["rank"] % 2 == 0]


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[list[Path]]:
    """Stand for the machines' memories: a folder each, which is removed as the machine is lost."""
    folder = Path(tempfile.mkdtemp(prefix="stratagem-test-", dir="/dev/shm"))
    made = [folder / str(number) for number in range(4)]
    for each in made:
        each.mkdir()
    yield made
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("strategy", "in_memory"),
    [
        pytest.param("replicate+tensor=2", True, marks=pytest.mark.long),
        pytest.param("pipeline=2+shard", False, marks=pytest.mark.long),
        pytest.param("replicate+tensor=2", False, marks=pytest.mark.soak),
        pytest.param("shard+tensor=2", False, marks=pytest.mark.soak),
        pytest.param("shard+tensor=2", True, marks=pytest.mark.soak),
        pytest.param("pipeline=2+replicate", False, marks=pytest.mark.soak),
    ],
)
def test_two_by_two_goes_on_as_one_by_two_and_grows_again(
    four_machines: list[Node], nodes: FourNodes, memories: list[Path], strategy: str, in_memory: bool
) -> None:
    """Each sample is once in each epoch; steps, rates, losses and weights are those of a plain loop."""
    flags = ("--num-nodes", "2:4", "--max-restarts", "9", "--global-batch-size", str(GLOBAL))
    flags += ("--max-epochs", str(four_nodes.EPOCHS), "--strategy", strategy)
    if "tensor" in strategy:
        flags += ("--set", SPLIT)
    if in_memory:
        flags += ("--checkpoint-memory", str(EVERY))
        (nodes.folder / "every.yaml").write_text(NOTHING_ON_DISK)

    def start(machine: Node) -> Any:
        memory = str(memories[machine.rank])
        return nodes.start(
            *flags, "--node-rank", str(machine.rank), prefix=machine.prefix, STRATAGEM_TMPFS=memory
        )

    def waiting(size: int, step: int) -> None:
        writers = size // 2 if "pipeline" in strategy else size
        nodes.wait_until(lambda: nodes.is_waiting(size, step, writers), 400)

    nodes.let_train_until(6)
    running = [start(machine) for machine in four_machines]
    waiting(4, 6)

    end([running.pop()])
    shutil.rmtree(memories[3])
    memories[3].mkdir()
    nodes.let_train_until(11)
    waiting(2, 11)
    assert "3 machines are here, and 2 take part" in nodes.output()

    running.append(start(four_machines[3]))
    nodes.let_train_until(16)
    waiting(4, 16)
    assert all(node.poll() is None for node in running), nodes.output()
    nodes.let_train_until(FOR_EVER)
    assert [node.wait(300) for node in running] == [0] * 4, nodes.output()
    steps = last_tries(of_data_ranks(nodes.entries(), strategy))
    compare(steps, None if in_memory else nodes.folder / "run" / "checkpoints" / "last")
    if in_memory:
        assert nodes.output().count("resuming from peers://step=") == 2, nodes.output()
