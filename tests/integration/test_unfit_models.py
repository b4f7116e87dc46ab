"""A model that a strategy can't take is refused before workers are started, if the trainer has the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mixture_models import Mixed
from stratagem_model_parallel import ModelParallelStrategy
from tensor_models import Encoder
from torch import nn

import stratagem
from stratagem import ConfigError


class Launched(BaseException):
    """Workers would be started now."""


def launched(*args: Any) -> None:
    raise Launched


class Whole(stratagem.Module):
    """Has its layers from the constructor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return [torch.ones(4, 2)]


class Later(Whole):
    """Changes its layers in a hook, which only workers call."""

    def configure_model(self) -> None:
        self.net = three_layers()


def three_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))


def fit(strategy: Any, devices: int, module: Whole, folder: Path) -> None:
    stratagem.Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, max_epochs=1, run_dir=folder, logger=False
    ).fit(module)


@pytest.mark.parametrize(
    ("strategy", "devices", "net", "message"),
    [
        ("pipeline", 4, three_layers, "3 layers, too few for 4 stages"),
        ("pipeline=4+shard=2", 8, three_layers, "3 layers, too few for 4 stages"),
        ("pipeline=2+shard=2", 4, lambda: nn.Linear(2, 2), "has no nn.Sequential of at least two layers"),
        ("shard=2+tensor=2", 4, lambda: Encoder(heads=1), "num_heads=1, which can't be distributed equally"),
        (
            ModelParallelStrategy(tensor_parallel_size=2),
            2,
            lambda: Encoder(heads=1),
            "num_heads=1, which can't be distributed equally",
        ),
        ("expert=3", 3, Mixed, "has 4 experts, which 3 ranks along axis 'expert' can't have"),
        ("expert=2", 2, three_layers, "axis 'expert' found no experts in"),
    ],
)
def test_refused_before_workers_are_started(
    strategy: Any, devices: int, net: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratagem_trainer.trainer.launch", launched)
    with pytest.raises(ConfigError, match=message):
        fit(strategy, devices, Whole(net()), tmp_path)
    assert not list(tmp_path.iterdir())


def test_layers_that_come_later_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratagem_trainer.trainer.launch", launched)
    with pytest.raises(Launched):
        fit("pipeline", 3, Later(nn.Linear(2, 2)), tmp_path)
    with pytest.raises(ConfigError, match=r"has no nn\.Sequential"):
        fit("pipeline", 3, Whole(nn.Linear(2, 2)), tmp_path)


def test_models_that_fit_are_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratagem_trainer.trainer.launch", launched)
    for strategy, devices, net in (
        ("pipeline", 3, three_layers()),
        ("shard=2+tensor=2", 4, Encoder()),
        ("expert=2", 2, Mixed()),
    ):
        with pytest.raises(Launched):
            fit(strategy, devices, Whole(net), tmp_path)
