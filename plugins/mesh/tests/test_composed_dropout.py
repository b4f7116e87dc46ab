"""Which ranks drop the same activations under a composition, and which others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_mesh import ComposedStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

SPLIT = {"tensor": {"parallelize": {"net.0": "colwise", "net.1": "local_dropout", "net.2": "rowwise"}}}


class RecordedDropout(nn.Dropout):
    """Keeps which activations it dropped, call by call."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.masks: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        dropped = super().forward(x)
        own = dropped.to_local() if hasattr(dropped, "to_local") else dropped
        self.masks.append("".join(str(int(each)) for each in own.flatten() == 0))
        return dropped


class Dropping(stratagem.Module):
    """Two layers that `tensor` splits, with dropout between them, and a third after dropout of what is whole."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(8, 16), RecordedDropout(), nn.Linear(16, 8), RecordedDropout(), nn.Linear(8, 1)
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()

    def on_train_end(self) -> None:
        masks = {name: each.masks for name, each in self.named_modules() if isinstance(each, RecordedDropout)}
        (self.folder / f"rank{self.global_rank}.json").write_text(json.dumps(masks))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(x), 8)


def masks_of(strategy: str, folder: Path) -> list[dict[str, str]]:
    """Train a step on 4 ranks; return of each rank the mask of its newest call by the dropout's name."""
    options = {"axis_options": SPLIT} if "tensor" in strategy else {}
    trainer = stratagem.Trainer(
        strategy=ComposedStrategy(strategy, start_method="fork", **options),
        accelerator="cpu",
        devices=4,
        max_steps=1,
        seed=3,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=folder / "run",
    )
    trainer.fit(Dropping(str(folder)))
    masks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]
    return [{name: each[-1] for name, each in of_rank.items() if each} for of_rank in masks]


@pytest.mark.parametrize(
    ("strategy", "between", "after"),
    [
        pytest.param("replicate=2+shard=2", 4, [[0], [1], [2], [3]], id="replicate+shard"),
        pytest.param("shard=2+tensor=2", 4, [[0, 1], [2, 3]], id="shard+tensor"),
        pytest.param("pipeline=2+shard=2", 2, [[2], [3]], id="pipeline+shard"),
        pytest.param("pipeline=2+tensor=2", 2, [[2, 3]], id="pipeline+tensor"),
    ],
)
def test_ranks_drop_alike_what_they_have_alike(
    tmp_path: Path, strategy: str, between: int, after: list[list[int]]
) -> None:
    """`between` ranks drop differently between split layers; those in one list of `after` drop alike after them."""
    masks = masks_of(strategy, tmp_path)
    assert len({each["net.1"] for each in masks if "net.1" in each}) == between
    whole = {rank: each["net.3"] for rank, each in enumerate(masks) if "net.3" in each}
    assert sorted(whole) == sorted(rank for group in after for rank in group)
    alike: dict[str, list[int]] = {}
    for rank, mask in whole.items():
        alike.setdefault(mask, []).append(rank)
    assert list(alike.values()) == after
    # No rank draws the numbers of another dropout again.
    assert not {each["net.1"][:16] for each in masks if "net.1" in each} & {
        mask[:16] for mask in whole.values()
    }
