"""Modules whose layers are made in configure_model: exactly as in one process, and never whole on a rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed.conformance import SUBJECT
from stratagem_testing import StrategySubject
from stratagem_testing.workers import RankError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

WIDTH = 64


class Net(nn.Module):
    """Has initialisation of inner layers by outer ones, a tie, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)  # sets its out_proj.bias to zeros
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        for layer in self.layers:
            nn.init.constant_(layer.bias, 0.25)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.layers[0].weight
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x)
        for layer in self.layers:
            y = torch.tanh(layer(y))
        return self.norm(self.head(y))


def make() -> Net:
    torch.manual_seed(9)
    return Net()


class Deferred(stratagem.Module):
    def configure_model(self) -> None:
        self.net = make()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        wide = [p for p in self.parameters() if p.dim() > 1]
        return torch.optim.SGD([{"params": wide, "weight_decay": 0.1}], lr=0.0)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(8, WIDTH)), 2)


def subject(tmp_path: Path, size: int, **options: Any) -> StrategySubject:
    chosen = {**SUBJECT.options, "stage": 3, **options}
    return replace(SUBJECT, options=chosen, world_size=size, folder=str(tmp_path))


class Held:
    """How many elements a construction has made at a time."""

    def __init__(self) -> None:
        from stratagem_sharding.deferred_init import Construction

        self.most, original = 0, Construction.materialize

        def materialize(construction: Any, tensors: Any) -> Any:
            made = original(construction, tensors)
            self.most = max(self.most, sum(tensor.numel() for tensor in made))
            return made

        self.restore = lambda: setattr(Construction, "materialize", original)
        Construction.materialize = materialize  # type: ignore[method-assign]  # patched until restore


@pytest.mark.parametrize("size", [1, 2])
def test_made_exactly_and_a_layer_at_a_time(size: int, tmp_path: Path) -> None:
    plain = make()
    whole = sum(parameter.numel() for parameter in plain.parameters())
    for held, shards, tensors in subject(tmp_path, size).run(_build):
        assert held < whole / 3, "a rank made more than a layer at a time"
        assert shards <= whole / size + len(list(plain.parameters()))
        assert tensors.keys() == plain.state_dict().keys()
        for name, value in plain.state_dict().items():
            assert name.startswith("norm") or torch.equal(tensors[name], value), name


class _Look(stratagem.Callback):
    def on_start(self, trainer: Any, module: Any, stage: str) -> None:
        self.shards = sum(p.ds_tensor.numel() for p in module.parameters())
        assert all(p.ds_status.name == "NOT_AVAILABLE" for p in module.parameters())
        tensors = trainer.prepared.model_tensors()
        self.tensors = {
            key.removeprefix("model/net."): getattr(value, "full_tensor", value.clone)()
            for key, value in tensors.items()
        }


def _build(own: StrategySubject) -> tuple[int, int, dict[str, Tensor]]:
    held, look = Held(), _Look()
    try:
        own.trainer(max_steps=2, callbacks=[look]).fit(Deferred())
    finally:
        held.restore()
    return held.most, look.shards, look.tensors


def test_after_the_run_one_process_has_a_plain_module(tmp_path: Path) -> None:
    subject(tmp_path, 1).run(_plain_again)


def _plain_again(own: StrategySubject) -> None:
    module = Deferred()
    own.trainer(max_steps=1).fit(module)
    expected = make().state_dict()
    assert torch.equal(module.net.state_dict()["layers.3.weight"], expected["layers.3.weight"])
    assert not any(hasattr(parameter, "ds_id") for parameter in module.parameters())
    assert all(type(each._parameters) is dict for each in module.modules())
    module.net(torch.randn(3, WIDTH)).sum().backward()


class OnMeta(Deferred):
    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.net = make()

    def configure_model(self) -> None:
        pass


def test_a_tensor_on_meta_that_nothing_fills_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="make layers in configure_model"):
        subject(tmp_path, 1).run(_on_meta)


def _on_meta(own: StrategySubject) -> None:
    own.trainer(max_steps=1).fit(OnMeta())


def test_evaluation_alone_needs_no_optimizer(tmp_path: Path) -> None:
    expected = make().eval()
    batch = torch.ones(2, WIDTH)
    with torch.no_grad():
        wanted = expected(batch)
    for stage in (2, 3):
        for predicted in subject(tmp_path, 2, stage=stage).run(_predict, batch):
            torch.testing.assert_close(predicted, wanted)


def _predict(own: StrategySubject, batch: Tensor) -> Tensor:
    return own.runtime().launch(_evaluate, batch, quiet=True)


def _evaluate(runtime: Any, batch: Tensor) -> Tensor:
    module = runtime.setup(make()).eval()
    with torch.no_grad():
        return module(batch)
