"""What the loop asks its policy, with which arguments, and what it does with the answers."""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import batches
from small import Line, TwoPlayers
from stratagem_trainer.loops.policy import EpochEnd, LoopPolicy
from stratagem_trainer.stage.progress import Progress
from threads import on_threads
from torch.utils.data import DataLoader

import stratagem


class Noting(LoopPolicy):
    """Decides as its base does, and notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin_evaluation(self, loader: Any, epoch: int) -> None:
        self.calls.append(("begin", loader.num_batches, epoch))

    def evaluation_random_numbers(self, device: torch.device) -> AbstractContextManager[None]:
        self.calls.append(("random numbers", device.type))
        return super().evaluation_random_numbers(device)

    def divisors(self, size: int, micro_batches: int, last_share: float) -> Any:
        self.calls.append(("divisors", size, micro_batches, last_share))
        return super().divisors(size, micro_batches, last_share)

    def count_manual_step(self, progress: Progress) -> None:
        self.calls.append(("manual step", progress.step))

    def count_manual_batch(self, progress: Progress) -> None:
        super().count_manual_batch(progress)
        self.calls.append(("manual batch", progress.step))

    def steps_schedulers_of_manual_modules(self, mentions_schedulers: bool) -> bool:
        self.calls.append(("schedulers", mentions_schedulers))
        return super().steps_schedulers_of_manual_modules(mentions_schedulers)

    def ends_cut_epoch(self, num_batches: int) -> bool:
        self.calls.append(("cut", num_batches))
        return super().ends_cut_epoch(num_batches)

    def end_epoch(self, epoch: EpochEnd) -> None:
        self.calls.append(("end", epoch.is_cut, epoch.is_skipped, epoch.is_stopped()))
        super().end_epoch(epoch)


def trainer(policy: LoopPolicy, tmp_path: Path, **how: Any) -> stratagem.Trainer:
    made = stratagem.Trainer(
        **{
            "strategy": "single",
            "accelerator": "cpu",
            "max_epochs": 2,
            "limit_train_batches": 5,
            "limit_val_batches": 2,
            "enable_progress_bar": False,
            "enable_checkpointing": False,
            "logger": False,
            "run_dir": tmp_path / "run",
            "seed": 1,
            **how,
        }
    )
    made.settings = replace(made.settings, policy=policy)
    return made


def fit(policy: Noting, module: Any, tmp_path: Path, **how: Any) -> list[Any]:
    trainer(policy, tmp_path, **how).fit(module, batches())
    return policy.calls


def test_a_fit_asks_it_per_window_and_per_epoch(tmp_path: Path) -> None:
    calls = fit(Noting(), Line(), tmp_path, accumulate_grad_batches=2)
    assert calls == [
        event
        for epoch in range(2)
        for event in (
            *[("divisors", 2, 2, 1.0)] * 2,
            ("divisors", 1, 2, 1.0),
            ("end", False, False, False),
            ("random numbers", "cpu"),
            ("begin", 12, epoch),
        )
    ]


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_outside_of_a_fit_an_evaluation_is_of_the_first_epoch(stage: str, tmp_path: Path) -> None:
    policy, module = Noting(), Line()
    run = trainer(policy, tmp_path, max_epochs=3, limit_val_batches=0)
    run.fit(module, batches())
    policy.calls.clear()
    trained, run.settings = run, replace(run.settings, limit_val_batches=2)
    getattr(trained, stage)(module)
    assert policy.calls == [("random numbers", "cpu"), ("begin", 12, 0)]
    policy.calls.clear()
    trained.predict(module)
    assert policy.calls == [("begin", 12, 0)]


def test_it_hears_of_a_cut_a_skip_and_a_stop(tmp_path: Path) -> None:
    assert fit(Noting(), Line(), tmp_path, max_epochs=None, max_steps=7, limit_val_batches=0) == [
        ("end", False, False, False),
        ("cut", 2),
    ]

    class Skips(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 3 else None

    assert fit(Noting(), Skips(), tmp_path, limit_val_batches=0) == [("end", True, True, False)] * 2

    class Stops(Line):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.trainer.should_stop = batch_idx == 4

    assert fit(Noting(), Stops(), tmp_path, limit_val_batches=0) == [("end", False, False, True)]
    # A stop that has to wait for an epoch isn't one yet.
    assert fit(Noting(), Stops(), tmp_path, limit_val_batches=0, min_epochs=2)[0] == (
        "end",
        False,
        False,
        False,
    )


def test_an_epoch_that_it_ends_when_it_is_cut_counts(tmp_path: Path) -> None:
    class Ends(Noting):
        def ends_cut_epoch(self, num_batches: int) -> bool:
            return num_batches == 2

    for steps, epochs in ((7, 2), (8, 1)):
        policy = Ends()
        run = trainer(policy, tmp_path, max_epochs=None, max_steps=steps, limit_val_batches=0)
        run.fit(Line(), batches())
        assert run.current_epoch == epochs
        ended = [("end", False, False, False), ("end", True, False, False)]
        assert policy.calls == ended[:epochs]


def test_a_manual_module_counts_by_it(tmp_path: Path) -> None:
    calls = fit(Noting(), TwoPlayers(), tmp_path, max_epochs=1, limit_train_batches=2, limit_val_batches=0)
    assert calls == [
        ("schedulers", False),
        *[("manual step", 0), ("manual step", 0), ("manual batch", 1)],
        *[("manual step", 1), ("manual step", 1), ("manual batch", 2)],
        ("end", False, False, False),
    ]


def test_whether_the_loop_steps_schedulers_of_a_manual_module(tmp_path: Path) -> None:
    class Scheduled(TwoPlayers):
        def configure_optimizers(self) -> Any:
            self.first, second = super().configure_optimizers()
            return [self.first, second], [torch.optim.lr_scheduler.ExponentialLR(self.first, 0.5)]

    class ByHand(Scheduled):
        def on_train_epoch_end(self) -> None:
            assert self.lr_schedulers() is not None

    for kind, mentions, rate in ((Scheduled, False, 0.05 / 4), (ByHand, True, 0.05)):
        module = kind()
        assert fit(Noting(), module, tmp_path, limit_val_batches=0)[0] == ("schedulers", mentions)
        assert module.first.param_groups[0]["lr"] == rate


@pytest.mark.parametrize(
    ("size", "last_share", "expected"),
    [
        (1, 1.0, [1.0]),
        (1, 0.5, [1.0]),
        (3, 1.0, [3.0, 3.0, 3.0]),
        # Three samples in batches of 2 and 1: each counts a third, of means over two samples and one.
        (2, 0.5, [1.5, 3.0]),
        (3, 0.25, [2.25, 2.25, 9.0]),
    ],
)
def test_each_sample_of_a_step_counts_alike(size: int, last_share: float, expected: list[float]) -> None:
    assert list(LoopPolicy().divisors(size, 4, last_share)) == expected


def test_what_it_decides_by_itself() -> None:
    policy = pickle.loads(pickle.dumps(LoopPolicy()))
    assert [policy.data_seed(seed, 5) for seed in (None, 0, 3)] == [0, 0, 3]
    assert policy.evaluation_step(7, 2) == 7
    assert policy.ends_cut_epoch(3) is False
    assert policy.steps_schedulers_of_manual_modules(True) is False
    assert policy.steps_schedulers_of_manual_modules(False) is True
    progress = Progress()
    policy.count_manual_step(progress)
    assert progress.step == 0
    policy.count_manual_batch(progress)
    assert progress.step == 1
    loader = object()
    assert policy.training_loader(loader, None, 1) is loader  # type: ignore[arg-type]  # ranks don't matter to it


def test_a_loader_of_an_evaluation_is_shared_among_the_ranks() -> None:
    def work(ranks: Any) -> Any:
        dataset = list(range(5))
        loader = DataLoader(dataset, 2, sampler=[4, 3, 2, 1, 0])
        shared, is_shared = LoopPolicy().evaluation_loader(loader, "validate", ranks, 3)
        return [each.tolist() for each in shared], is_shared

    # Not filled up: a sample that is evaluated twice would count twice.
    assert on_threads(2, work) == [([[4, 2], [0]], True), ([[3, 1]], True)]


def test_what_is_restored_and_in_which_order() -> None:
    class Saved:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def __getattr__(self, name: str) -> Any:
            return lambda: self.calls.append(name)

    expected = {
        "before_restore": ["restore_datamodule"],
        "after_restore": ["call_callbacks", "call_module"],
        "restore_for_evaluation": ["call_callbacks", "call_module"],
    }
    for method, calls in expected.items():
        saved = Saved()
        getattr(LoopPolicy(), method)(saved)
        assert saved.calls == calls


def test_an_epochs_end_is_in_order(tmp_path: Path) -> None:
    """Metrics are reduced before schedulers, which may read them, and again after each hook, which may log."""
    seen: list[Any] = []

    class Ends(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("loss_mean", float(batch_idx), on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def on_validation_epoch_end(self) -> None:
            seen.append("validated")

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            seen.append(("scheduler", metric))

        def on_train_epoch_end(self) -> None:
            self.log("of_module", 5.0)
            seen.append(("module", self.trainer.callback_metrics["loss_mean"]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "loss_mean"}

    class Reads(stratagem.Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            seen.append(("callback", trainer.callback_metrics["of_module"]))
            module.log("of_callback", 6.0)

    run = trainer(LoopPolicy(), tmp_path, max_epochs=1, callbacks=[Reads()])
    run.fit(Ends(), batches())
    assert seen == ["validated", ("scheduler", 2.0), ("module", 2.0), ("callback", 5.0)]
    assert run.callback_metrics["of_callback"] == 6.0
