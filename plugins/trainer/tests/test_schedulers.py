"""Every scheduler of torch: stepped as a plain loop steps it, saved, and continued bit for bit."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Regression, hold_against_plain_torch, train
from small import Line, TwoPlayers
from torch.optim import SGD, Adam, swa_utils
from torch.optim import lr_scheduler as of_torch

import stratagem
from stratagem.errors import ConfigError


class Halving:
    """A callable with state, which a checkpoint keeps."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 1.0 / self.calls


def sgd(module: Any) -> SGD:
    return SGD(
        [{"params": module.first.parameters()}, {"params": module.second.parameters(), "lr": 0.03}],
        lr=0.05,
        momentum=0.9,
    )


SCHEDULERS: dict[str, Any] = {
    "ChainedScheduler": lambda o: of_torch.ChainedScheduler(
        [of_torch.ConstantLR(o, 0.1, 3), of_torch.ExponentialLR(o, 0.9)], o
    ),
    "ConstantLR": lambda o: of_torch.ConstantLR(o, 0.5, 12),
    "CosineAnnealingLR": lambda o: of_torch.CosineAnnealingLR(o, 7),
    "CosineAnnealingWarmRestarts": lambda o: of_torch.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: of_torch.CyclicLR(o, 0.01, 0.1, 3, mode="triangular2"),
    "CyclicLR, a function": lambda o: of_torch.CyclicLR(o, 0.01, 0.1, 3, scale_fn=Halving()),
    "ExponentialLR": lambda o: of_torch.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: of_torch.LambdaLR(o, lambda step: 0.95**step),
    "LambdaLR, an object": lambda o: of_torch.LambdaLR(o, [Halving(), Halving()]),
    "LinearLR": lambda o: of_torch.LinearLR(o, 0.1, 1.0, 13),
    "MultiStepLR": lambda o: of_torch.MultiStepLR(o, [3, 3, 9, 13]),
    "MultiplicativeLR": lambda o: of_torch.MultiplicativeLR(o, lambda step: 0.95),
    "OneCycleLR": lambda o: of_torch.OneCycleLR(o, [0.1, 0.2], total_steps=16),
    "OneCycleLR, three phases": lambda o: of_torch.OneCycleLR(
        o, 0.1, epochs=2, steps_per_epoch=8, anneal_strategy="linear", three_phase=True
    ),
    "PolynomialLR": lambda o: of_torch.PolynomialLR(o, 14, 2.0),
    "ReduceLROnPlateau": lambda o: of_torch.ReduceLROnPlateau(o, patience=2, cooldown=1),
    "SequentialLR": lambda o: of_torch.SequentialLR(
        o,
        [
            of_torch.LinearLR(o, 0.1, 1.0, 4),
            of_torch.MultiStepLR(o, [2, 6]),
            of_torch.CosineAnnealingLR(o, 5),
        ],
        [4, 10],
    ),
    "StepLR": lambda o: of_torch.StepLR(o, 3, 0.5),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, 6, "cos"),
}


@pytest.mark.filterwarnings("ignore:To get the last learning rate:UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_continues_as_plain_torch_goes_on(name: str, tmp_path: Path) -> None:
    class Logs(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("constant", 1.0)
            return super().training_step(batch, batch_idx)

    def setup(module: Any) -> Any:
        optimizer = sgd(module)
        return optimizer, SCHEDULERS[name](optimizer)

    how = {"monitor": "constant"} if name == "ReduceLROnPlateau" else {}
    hold_against_plain_torch(lambda: Logs(setup, **how), tmp_path)


def test_momentum_and_betas_are_cycled_too(tmp_path: Path) -> None:
    def setup(module: Any) -> Any:
        optimizer = Adam(module.parameters(), lr=0.01)
        return optimizer, of_torch.OneCycleLR(optimizer, 0.1, total_steps=16)

    hold_against_plain_torch(lambda: Regression(setup), tmp_path)


def test_none_of_torch_is_left_out() -> None:
    abstract = {"LRScheduler", "_LRScheduler"}
    known = {
        name
        for name, value in vars(of_torch).items()
        if inspect.isclass(value) and issubclass(value, of_torch.LRScheduler) and name not in abstract
    }
    assert known | {"SWALR"} == {name.partition(",")[0] for name in SCHEDULERS}


def configured(returned: Any) -> Line:
    class Configured(Line):
        def configure_optimizers(self) -> Any:
            return returned(SGD(self.parameters(), lr=0.1))

    return Configured(count=16)


def step_lr(optimizer: Any) -> Any:
    return of_torch.StepLR(optimizer, 1)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (
            lambda o: {"optimizer": o, "scheduler": step_lr(o)},
            "a dict has 'scheduler'; allowed are lr_scheduler, mon",
        ),
        (lambda o: {"optimizer": o, "monitor": "x"}, "monitor='x' and no 'lr_scheduler'"),
        (
            lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": step_lr(o), "rate": 1}},
            "has 'rate'; allowed",
        ),
        (lambda o: {"optimizer": o, "lr_scheduler": {"interval": "step"}}, "no 'scheduler'"),
        (lambda o: ([o], [{"scheduler": step_lr(o), "interval": "batch"}]), "interval='batch'"),
        (lambda o: ([o], [{"scheduler": step_lr(o), "frequency": 0}]), "frequency=0; give a whole number"),
        (
            lambda o: ([o], [{"scheduler": step_lr(o), "frequency": 4}]),
            "frequency=4, and would never .*max_epochs=3",
        ),
        (lambda o: ([o], [of_torch.ReduceLROnPlateau(o)]), "ReduceLROnPlateau needs a metric"),
        (lambda o: ([o], [o]), "a SGD where a learning rate scheduler"),
        (lambda o: ([o], ["StepLR"]), "a str where a learning rate scheduler"),
        (
            lambda o: ([o], [step_lr(SGD([torch.zeros(1, requires_grad=True)], lr=1.0))]),
            "StepLR sets the rates of a SGD that configure_optimizers doesn't return",
        ),
        (
            lambda o: {
                "optimizer": o,
                "monitor": "one",
                "lr_scheduler": {"scheduler": of_torch.ReduceLROnPlateau(o), "monitor": "two"},
            },
            "monitor='one' beside 'lr_scheduler' and monitor='two' within it",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(returned: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        train(configured(returned), tmp_path, max_epochs=3)


def test_the_outer_monitor_is_the_schedulers(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Plateau(of_torch.ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: Any = None) -> None:
            seen.append(metrics)
            super().step(metrics)

    class Monitored(Line):
        def configure_optimizers(self) -> Any:
            optimizer = SGD(self.parameters(), lr=0.1)
            return {"optimizer": optimizer, "lr_scheduler": Plateau(optimizer), "monitor": "val_loss"}

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", 2.5)

    train(Monitored(), tmp_path)
    assert seen == [2.5, 2.5]


def test_schedulers_follow_optimizers_that_are_stepped_by_hand(tmp_path: Path) -> None:
    class Now(TwoPlayers):
        def configure_optimizers(self) -> Any:
            optimizers = super().configure_optimizers()
            return optimizers, [
                {"scheduler": of_torch.ExponentialLR(optimizer, 0.5), "interval": "step"}
                for optimizer in optimizers
            ]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, second = self.optimizers()
            for optimizer in [first] if batch_idx % 2 else [first, second]:
                optimizer.zero_grad()
                self.manual_backward(self.other(self(batch[0])).mean())
                optimizer.step()
            self.rates = [each.param_groups[0]["lr"] for each in (first, second)]

    module = Now()
    train(module, tmp_path, max_epochs=1)
    assert module.rates == [0.05 * 0.5**7, 0.05 * 0.5**4]


def test_a_schedule_of_ranks_that_differ_follows_rank_0(tmp_path: Path) -> None:
    module = PerRank()
    trainer = stratagem.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
        seed=1,
    )
    trainer.fit(module)
    # Rank 0's loss falls and rank 1's rises: each by its own would have ended with another rate.
    assert trainer.callback_metrics["rate_range"] == 0.0


class PerRank(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log(
            "own", self.trainer.current_epoch * (2.0 * self.global_rank - 1), on_step=False, on_epoch=True
        )
        rate = self.optimizer.param_groups[0]["lr"]
        self.log("most", rate, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True)
        self.log("least", rate, on_step=False, on_epoch=True, reduce_fx="min", sync_dist=True)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        self.log("rate_range", metrics["most"] - metrics["least"], reduce_fx="max", sync_dist=True)

    def configure_optimizers(self) -> Any:
        self.optimizer = SGD(self.parameters(), lr=0.1)
        plateau = of_torch.ReduceLROnPlateau(self.optimizer, patience=0)
        return {"optimizer": self.optimizer, "lr_scheduler": plateau, "monitor": "own"}


def test_schedulers_follow_optimizers_that_a_hook_leaves_out(tmp_path: Path) -> None:
    class Two(Regression):
        def configure_optimizers(self) -> Any:
            made = [SGD(self.first.parameters(), lr=0.1), SGD(self.second.parameters(), lr=0.1)]
            return made, [
                {"scheduler": of_torch.ExponentialLR(optimizer, 0.5), "interval": "step"}
                for optimizer in made
            ]

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            is_first = optimizer.param_groups[0]["params"][0] is self.first.weight
            if is_first or batch_idx % 4 == 3:
                optimizer.step(closure=optimizer_closure)

    trainer = train(Two(), tmp_path, max_epochs=1, callbacks=Kept())
    assert Kept.rates == [0.1 * 0.5**8, 0.1 * 0.5**2]
    assert trainer.global_step == 8


class Kept(stratagem.Callback):
    rates: list[float] = []

    def on_train_end(self, trainer: Any, module: Any) -> None:
        Kept.rates = [each.param_groups[0]["lr"] for each in trainer.prepared.optimizers]
