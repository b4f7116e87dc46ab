"""Checkpoints in DeepSpeed's own format: read from, and written for, people who have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed.conformance import SUBJECT
from stratagem_testing import StrategySubject
from torch import nn

from stratagem import CheckpointError


def make() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2)


def batch(step: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(step))


def subject(stage: int, size: int, **options: Any) -> StrategySubject:
    return replace(SUBJECT, options={**SUBJECT.options, "stage": stage, **options}, world_size=size)


def whole(steps: int) -> list[float]:
    net = make()
    optimizer, losses = adam(net), []
    for step in range(steps):
        loss = net(batch(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _train(runtime: Any, begin: int, end: int, folder: str | None) -> list[float]:
    module, optimizer = runtime.setup(make(), adam)
    losses = []
    for step in range(begin, end):
        loss = module(batch(step).chunk(runtime.world_size)[runtime.rank]).square().mean()
        runtime.backward(loss)
        optimizer.step()
        losses.append(float(runtime.all_reduce(loss.detach(), "mean")))
    if folder is not None:
        runtime._prepared[0].save_engine(folder)
    return losses


def _run(own: StrategySubject, begin: int, end: int, folder: str | None = None) -> list[float]:
    return own.runtime().launch(_train, begin, end, folder, quiet=True)


def _by_hand(own: StrategySubject, folder: str) -> list[float]:
    """Go on from what a run has saved, with nothing but the engine. Run by every rank."""
    return own.runtime().launch(_engine_alone, own.options["stage"], folder, quiet=True)


def _engine_alone(runtime: Any, stage: int, folder: str) -> list[float]:
    import deepspeed

    net = make()
    config = {
        "train_micro_batch_size_per_gpu": 4 // runtime.world_size,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=adam(net), config=config, dist_init_required=False)
    engine.load_checkpoint(folder)
    losses = []
    for step in range(3, 6):
        loss = engine(batch(step).chunk(runtime.world_size)[runtime.rank]).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(float(runtime.all_reduce(loss.detach(), "mean")))
    engine.destroy()
    return losses


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_written_and_read(stage: int, tmp_path: Path) -> None:
    folder = str(tmp_path / "native")
    subject(stage, 2).run(_run, 0, 3, folder)
    for losses in subject(stage, 2, engine_checkpoint=folder).run(_run, 3, 6):
        assert losses == pytest.approx(whole(6)[3:], abs=1e-6)


@pytest.mark.parametrize("stage", [1, 3])
def test_the_engine_by_hand_reads_what_a_run_wrote(stage: int, tmp_path: Path) -> None:
    folder = str(tmp_path / "native")
    subject(stage, 2).run(_run, 0, 3, folder)
    # A runtime of its own, so that the process group is there; and processes, in which stage 3 replaces
    # torch.nn.functional.linear for good, so that gradients would come in another order than on other ranks.
    for losses in replace(subject(stage, 2), own_processes=True).run(_by_hand, folder):
        assert losses == pytest.approx(whole(6)[3:], abs=1e-6)


def test_another_world_size_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "native")
    subject(2, 2).run(_run, 0, 1, folder)
    (said,) = subject(2, 1, engine_checkpoint=folder).run(_refusal)
    assert "written by 2 processes with ZeRO, and this run has 1" in said


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (said,) = subject(2, 1, engine_checkpoint=str(tmp_path)).run(_refusal)
    assert "no file 'latest'" in said


def _refusal(own: StrategySubject) -> str:
    try:
        _run(own, 0, 1)
    except CheckpointError as error:
        return str(error)
    return "nothing"
