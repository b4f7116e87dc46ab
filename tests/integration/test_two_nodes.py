"""The command line on two nodes gives the losses of one node.

The nodes are network namespaces on this machine: each has a loopback of its own, and they reach each
other by one cable. Their common host name resolves to the loopback, as on many a real machine.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from namespaces import Node, why_not
from two_nodes import ADDRESSES, Placed, two_nodes

import stratagem

GLOBAL_BATCH, STEPS = 32, 8
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def nodes() -> Any:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with two_nodes() as made:
        yield made


def losses(run_dir: Path) -> list[float]:
    with (run_dir / "metrics.csv").open() as lines:
        return [float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]]


def fit_on_both(
    nodes: tuple[Node, Node], folder: Path, strategy: str, devices: int, batch_size: int
) -> list[Any]:
    """Run `stratagem fit` on each node; return what the ranks tell of themselves."""
    command = [
        *(sys.executable, "-m", "stratagem", "fit", "two_nodes:Placed"),
        *("--strategy", strategy, "--accelerator", "cpu", "--devices", str(devices)),
        *("--num-nodes", "2", "--rdzv-endpoint", f"{ADDRESSES[0]}:29400"),
        *("--max-steps", str(STEPS), "--seed", "7", "--run-dir", str(folder / "run")),
        *("--set", f"model.batch_size={batch_size}", "--set", f"model.folder={folder}"),
        *("--set", "trainer.log_every_n_steps=1", "--set", "strategy.timeout_s=120"),
    ]
    started = [node.start([*command, "--node-rank", str(node.rank)], cwd=SUPPORT) for node in nodes]
    printed = [each.communicate(timeout=240)[0] for each in started]
    assert [each.returncode for each in started] == [0, 0], "\n".join(printed)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def fit_on_one(folder: Path, strategy: str, devices: int, batch_size: int) -> None:
    trainer = stratagem.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        max_steps=STEPS,
        seed=7,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=folder / "alone",
    )
    trainer.fit(Placed(batch_size))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("strategy", "per_node", "loaders", "mesh"),
    [
        pytest.param("ddp", 1, 1, None, id="ddp", marks=pytest.mark.long),
        pytest.param("ddp2", 2, 1, None, id="ddp2", marks=pytest.mark.long),
        pytest.param("fsdp_hybrid", 2, 2, [[0, 1], [2, 3]], id="fsdp_hybrid", marks=pytest.mark.long),
    ],
)
def test_two_nodes_train_as_one(
    nodes: tuple[Node, Node], tmp_path: Path, strategy: str, per_node: int, loaders: int, mesh: Any
) -> None:
    """`loaders` are the processes of a node: each takes batches of its own."""
    places = fit_on_both(nodes, tmp_path, strategy, per_node, GLOBAL_BATCH // 2 // loaders)
    assert [place["node"] for place in places] == [0] * loaders + [1] * loaders
    assert len({(place["node"], place["network"]) for place in places}) == 2
    assert len({place["network"] for place in places}) == 2
    # Rows of the mesh are nodes: parameters are in shards within a row, and whole over a column.
    assert [place["mesh"] for place in places] == [mesh] * 2 * loaders
    # ddp2 has one process on one node.
    fit_on_one(tmp_path, strategy, 2, GLOBAL_BATCH if strategy == "ddp2" else GLOBAL_BATCH // 2)
    ours = losses(tmp_path / "run")
    assert len(ours) == STEPS
    assert ours == pytest.approx(losses(tmp_path / "alone"), abs=1e-6)
