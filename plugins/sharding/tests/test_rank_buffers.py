"""Buffers that hold values of a rank's own samples are refused, or each rank keeps its own, also in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from torch import nn

import stratagem
from stratagem import ConfigError, Runtime
from stratagem.errors import CheckpointError, DataError
from stratagem.installed.catalogue import load_catalogue

STRATEGIES = ("ddp", "ddp_sharded", "ddp_fully_sharded", "fsdp")


class Net(nn.Module):
    """Has running statistics, a count that all ranks agree on, and what `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("hidden", None)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x))
        self.count += 1
        if self.kind == "hidden":
            self.hidden = y.detach() if self.hidden is None else 0.5 * (self.hidden + y.detach())
            return y + self.hidden
        mean = y.detach().mean(0) + x.mean(0)
        if self.kind == "late" and self.count < 9:
            mean = torch.zeros(3)
        if self.kind == "averaged":
            torch.distributed.all_reduce(mean)
        self.centre.mul_(0.9).add_(mean, alpha=0.1)
        return y - self.centre


def batch(rank: int, index: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(7 * index + rank))


def train(runtime: Runtime, kind: str, steps: range, folder: str = "", manual: bool = False) -> Any:
    net = Net(kind)
    if kind == "hidden":
        net.hidden = torch.zeros(4, 3)
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    if folder and steps.start:
        runtime.load(folder)
    for index in steps:
        optimizer.zero_grad()
        runtime.backward(module(batch(runtime.rank, index)).square().sum())
        optimizer.step()
    if folder and not steps.start:
        runtime.save(folder)
    buffers = {name: each.tolist() for name, each in net.named_buffers()}
    return runtime.collectives.gather_objects(buffers)


def runtime(strategy: str, **options: Any) -> Runtime:
    given = {"start_method": "fork", **options}
    return Runtime(strategy=strategy, accelerator="cpu", devices=2, strategy_options=given)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_buffers_of_a_ranks_own_samples_are_refused(strategy: str) -> None:
    for kind, steps, name in (("hidden", 3, "hidden"), ("centre", 3, "centre"), ("late", 12, "centre")):
        with pytest.raises(DataError) as refused:
            runtime(strategy).launch(train, kind, range(steps), quiet=True)
        said = str(refused.value)
        assert f"buffer '{name}' differs between ranks 0 and 1" in said
        assert "torch.distributed.all_reduce" in said
        assert "buffers='local'" in said


@pytest.mark.parametrize("strategy", ["bagua", "fairscale_sharded"])
def test_strategies_without_the_option_refuse_them_too(strategy: str) -> None:
    if any(offer.missing() for offer in load_catalogue().of_kind("strategy") if offer.name == strategy):
        pytest.skip("its library isn't installed")
    with pytest.raises(DataError, match=r"buffer 'centre' differs between ranks 0 and 1.*all_reduce$"):
        runtime(strategy).launch(train, "centre", range(3), quiet=True)
    first, second = runtime(strategy).launch(train, "averaged", range(4), quiet=True)
    assert first["centre"] == second["centre"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_buffers_that_ranks_agree_on_and_statistics_train(strategy: str) -> None:
    first, second = runtime(strategy).launch(train, "averaged", range(4), quiet=True)
    assert first["centre"] == second["centre"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_rank_keeps_its_own_and_resumes_with_it(strategy: str, tmp_path: Path) -> None:
    path = str(tmp_path / "ckpt")
    local = {"buffers": "local"}
    whole = runtime(strategy, **local).launch(train, "hidden", range(5), quiet=True)
    assert whole[0]["hidden"] != whole[1]["hidden"]
    runtime(strategy, **local).launch(train, "hidden", range(3), path, quiet=True)
    assert runtime(strategy, **local).launch(train, "hidden", range(3, 5), path, quiet=True) == whole
    other = Runtime(
        strategy=strategy, accelerator="cpu", devices=3, strategy_options={"start_method": "fork", **local}
    )
    if strategy == "ddp":
        with pytest.raises(CheckpointError, match=r"has buffers of 2 ranks that differ.*this run has 3"):
            other.launch(train, "hidden", range(3, 5), path, quiet=True)


class Manual(stratagem.Module):
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.net = Net("centre")

    def training_step(self, index: torch.Tensor, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.net(torch.randn(4, 3) * (1 + index.sum())).square().sum())
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(range(16), 2)


def test_a_module_that_steps_by_hand_is_refused_too(tmp_path: Path) -> None:
    trainer = stratagem.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        run_dir=tmp_path,
        strategy_options={"start_method": "fork"},
    )
    with pytest.raises(DataError, match=r"buffer 'net.centre' differs between ranks 0 and 1"):
        trainer.fit(Manual())


def test_another_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"buffers='own' must be 'equal'.*or 'local'"):
        DDPStrategy(buffers="own")
