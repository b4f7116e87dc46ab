"""Training on the real engine: offloading, the engine's own optimizer and scheduler, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed.conformance import SMALL, SUBJECT
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.strategies.consistency import check_save_and_load
from stratagem_testing.strategies.resumption import check_mid_epoch
from stratagem_testing.trained import expect_parity, train_each
from torch import Tensor, nn
from torch.optim import Optimizer

from stratagem import Clipping, Runtime, UsageError

TORCH_ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01, "torch_adam": True}}


def subject(tmp_path: Path, size: int = 2, **options: Any) -> StrategySubject:
    return replace(SUBJECT, options={**SMALL, **options}, world_size=size, folder=str(tmp_path))


@dataclass(frozen=True)
class AdamW(Recipe):
    steps: int | None = 8

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)]


@dataclass(frozen=True)
class Deep(AdamW):
    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            blocks = [nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(3)]
            return nn.Sequential(*blocks, nn.Linear(6, 4))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_twenty_steps_with_accumulation_and_clipping(stage: int, tmp_path: Path) -> None:
    recipes = (Recipe(), Recipe(accumulate=2), Recipe(max_norm=0.05), Recipe(max_norm=0.05, accumulate=4))
    expect_parity(subject(tmp_path, stage=stage), *recipes, factor=2)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_the_engines_own_optimizer(stage: int, tmp_path: Path) -> None:
    own = subject(tmp_path, stage=stage, config={"optimizer": TORCH_ADAMW})
    expect_parity(own, AdamW(), factor=50)


def test_the_engines_own_scheduler_warms_up_and_is_resumed(tmp_path: Path) -> None:
    warmup = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.01, "warmup_num_steps": 4, "warmup_type": "linear"}
    config = {"optimizer": TORCH_ADAMW, "scheduler": {"type": "WarmupLR", "params": warmup}}
    own = subject(tmp_path, stage=2, config=config)
    (trained,) = own.run(train_each, [AdamW()])[0]
    rates = [rate for (rate,) in trained.rates]
    assert rates[0] < rates[2] < rates[-1] == pytest.approx(0.01)
    for rank_whole, rank_resumed in own.run(_interrupted):
        assert rank_resumed == pytest.approx(rank_whole, abs=2e-6)


def _interrupted(own: StrategySubject) -> tuple[list[float], list[float]]:
    from stratagem_testing.strategies.resumption import _SaveAt
    from stratagem_testing.trained import train

    path = f"{own.folder}/checkpoint"
    whole = train(own, AdamW(), [_SaveAt(3, path)])
    resumed = train(own, AdamW(), ckpt_path=path)
    return whole.losses[3:] + [r for (r,) in whole.rates[3:]], resumed.losses + [r for (r,) in resumed.rates]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_optimizer_states_on_the_cpu(stage: int, tmp_path: Path) -> None:
    own = subject(tmp_path, stage=stage, offload_optimizer=True, offload_parameters=stage == 3)
    expect_parity(own, AdamW(), AdamW(accumulate=2, max_norm=0.05), factor=50)
    check_save_and_load(own)


@pytest.mark.parametrize("stage", [2, 3])
def test_activations_computed_again(stage: int, tmp_path: Path) -> None:
    expect_parity(
        subject(tmp_path, stage=stage, activation_checkpointing_policy=["Sequential"]), Deep(), factor=50
    )


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_bf16_keeps_parameters_in_32_bits(precision: str, tmp_path: Path) -> None:
    own = subject(tmp_path, stage=2)
    expect_parity(own, AdamW(precision=precision), factor=5)
    (trained,) = own.run(train_each, [AdamW(precision=precision)])[0]
    assert {weight.dtype for weight in trained.weights.values()} == {torch.float32}


def test_small_parameters_may_stay_whole(tmp_path: Path) -> None:
    own = subject(tmp_path, stage=3, stage3_param_persistence_threshold=100_000)
    expect_parity(own, AdamW(), factor=50)
    check_save_and_load(own)


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    check_mid_epoch(subject(tmp_path, stage=3))


REFUSED = {
    "two optimizers": "steps one optimizer, and there are 2",
    "closure": "got a closure",
    "other clipping": "clips at a norm of 0.5",
    "inputs": "retain_graph alone",
    "batch size": "train_micro_batch_size_per_gpu=3, and the loader's batches have 2",
    "total": "has train_batch_size=9, and this run's is 2",
    "accumulation": "gradient_accumulation_steps=2, and accumulate_grad_batches is 1",
    "clipping": "give one of the two",
    "norm": "Euclidean norm",
    "precision": "choose precision='bf16-mixed'",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "batch size": {"train_micro_batch_size_per_gpu": 3},
    "total": {"train_batch_size": 9},
    "accumulation": {"gradient_accumulation_steps": 2},
    "clipping": {"gradient_clipping": 1.0},
    "precision": {"bf16": {"enabled": True}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path) -> None:
    own = subject(tmp_path, 1, stage=2, **({"config": CONFIGS[what]} if what in CONFIGS else {}))
    (said,) = own.run(_refusal, what)
    assert REFUSED[what] in said


def _refusal(own: StrategySubject, what: str) -> str:
    try:
        if what in ("batch size", "total"):
            train_each(own, [Recipe(global_batch=2, steps=1)])
        else:
            own.runtime().launch(_refused, what, quiet=True)
    except UsageError as error:
        return str(error)
    return "nothing"


def _refused(runtime: Runtime, what: str) -> None:
    net = nn.Linear(2, 2)

    def sgd(module: nn.Module) -> Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.1)

    clipping = {
        "norm": Clipping(1.0, norm_type=1.0),
        "clipping": Clipping(2.0),
        "other clipping": Clipping(0.5),
    }
    made = [sgd] * (2 if what == "two optimizers" else 1)
    module, optimizer = runtime.setup(net, *made, clipping=clipping.get(what))
    loss: Tensor = module(torch.ones(1, 2)).sum()
    if what == "inputs":
        runtime._prepared[0].backward(loss, inputs=[net.weight])
    runtime.backward(loss)
    if what == "other clipping":
        runtime.clip(optimizer, max_norm=0.1)
    optimizer.step(lambda: loss)
