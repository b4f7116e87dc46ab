from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Closure, Line, TwoPlayers, samples
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import CombinationError, ConfigError, DataError, LoggingError


def trainer(tmp_path: Path, **how: Any) -> stratagem.Trainer:
    settings = {
        "strategy": "single",
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "run_dir": tmp_path / "run",
        "seed": 1,
        **how,
    }
    return stratagem.Trainer(**settings)


class Recorder(stratagem.Callback):
    """Notes the order of moments."""

    def __init__(self) -> None:
        self.moments: list[str] = []

    def on_start(self, trainer: Any, module: Any, stage: str) -> None:
        self.moments.append(f"start {stage}")

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.moments.append(f"epoch {trainer.current_epoch}")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.moments.append(f"batch {batch_idx} step {trainer.global_step}")

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.moments.append(f"evaluated {stage} {'val_loss' in trainer.callback_metrics}")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.moments.append(f"end of epoch {trainer.current_epoch}")

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.moments.append(f"end {stage}")

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        self.moments.append(f"exception {error}")


def test_moments_come_in_order(tmp_path: Path) -> None:
    recorder = Recorder()
    module = Line(count=12)
    trainer(tmp_path, max_epochs=2, accumulate_grad_batches=2, callbacks=recorder).fit(module)
    epoch = [
        *("batch 0 step {0}", "batch 1 step {1}", "batch 2 step {2}"),
        *("evaluated validate True", "end of epoch {3}"),
    ]
    first = [line.format(0, 1, 2, 0) for line in epoch]
    second = [line.format(2, 3, 4, 1) for line in epoch]
    assert recorder.moments == ["start fit", "epoch 0", *first, "epoch 1", *second, "end fit"]


def test_the_last_partial_window_is_the_mean_of_its_own_batches(tmp_path: Path) -> None:
    module, plain = Line(count=20), Line(count=20)
    trainer(tmp_path, accumulate_grad_batches=3, max_epochs=1).fit(module)
    optimizer = plain.configure_optimizers()
    x, y = samples(20).tensors
    order = list(stratagem.ShardedSampler(20, seed=1))
    for window in (order[:12], order[12:]):
        optimizer.zero_grad()
        F.mse_loss(plain(x[window]), y[window]).backward()
        optimizer.step()
    torch.testing.assert_close(module.layer.weight, plain.layer.weight)


def test_an_unsized_loader_also_ends_with_its_partial_window(tmp_path: Path) -> None:
    module, plain = Line(), Line()
    batches = [samples().tensors[0][i : i + 4] for i in range(0, 20, 4)]

    class Stream:
        def __iter__(self) -> Any:
            return iter([(x, x.sum(1, keepdim=True)) for x in batches])

    t = trainer(tmp_path, accumulate_grad_batches=2, max_epochs=1)
    t.fit(module, Stream())
    assert t.global_step == 3
    optimizer = plain.configure_optimizers()
    for window in (batches[:2], batches[2:4], batches[4:]):
        optimizer.zero_grad()
        x = torch.cat(window)
        F.mse_loss(plain(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    torch.testing.assert_close(module.layer.weight, plain.layer.weight)


def test_max_steps_stops_in_mid_epoch_and_limits_count_batches(tmp_path: Path) -> None:
    t = trainer(tmp_path, max_steps=5)
    t.fit(Line())
    assert (t.global_step, t.current_epoch) == (5, 0)
    t = trainer(tmp_path, max_epochs=2, limit_train_batches=0.5)
    t.fit(Line())
    assert (t.global_step, t.current_epoch) == (12, 2)


def test_manual_optimization_equals_plain_torch(tmp_path: Path) -> None:
    module, plain = TwoPlayers(), TwoPlayers()
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module)
    first, second = plain.configure_optimizers()
    x, y = samples().tensors
    order = list(stratagem.ShardedSampler(48, seed=1))
    for start in range(0, 48, 4):
        chosen = order[start : start + 4]
        first.zero_grad()
        F.mse_loss(plain(x[chosen]), y[chosen]).backward()
        first.step()
        second.zero_grad()
        F.mse_loss(plain.other(plain(x[chosen]).detach()), y[chosen]).backward()
        second.step()
    assert t.global_step == 12
    for ours, theirs in zip(module.parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_closures_see_the_whole_window(tmp_path: Path) -> None:
    module, plain = Closure(), Closure()
    t = trainer(tmp_path, max_epochs=1, accumulate_grad_batches=4, log_every_n_steps=1)
    t.fit(module)
    assert t.global_step == 3
    optimizer = plain.configure_optimizers()
    x, y = samples().tensors
    order = list(stratagem.ShardedSampler(48, seed=1))
    for start in range(0, 48, 16):
        chosen = order[start : start + 16]

        def closure(chosen: list[int] = chosen) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(plain(x[chosen]), y[chosen])
            loss.backward()
            return loss

        optimizer.step(closure)
    torch.testing.assert_close(module.layer.weight, plain.layer.weight)


def test_schedulers_step_when_due(tmp_path: Path) -> None:
    class Scheduled(Line):
        rates: list[float]

        def configure_optimizers(self) -> Any:
            self.optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                self.optimizer, factor=0.5, patience=0, mode="max"
            )
            every_third = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.1)
            return [self.optimizer], [
                {"scheduler": plateau, "monitor": "constant"},
                {"scheduler": every_third, "interval": "step", "frequency": 3},
            ]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.rates.append(round(self.optimizer.param_groups[0]["lr"], 8))
            return super().training_step(batch, batch_idx) * 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("constant", 1.0)

    module = Scheduled(count=16)
    module.rates = []
    trainer(tmp_path, max_epochs=3).fit(module)
    # StepLR computes from the rate it finds, so the plateau's halving after epochs 1 and 2 stays.
    assert module.rates == [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.005, 0.0005, 0.0005, 0.0005]


def test_logs_reach_the_csv(tmp_path: Path) -> None:
    class Logs(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("idx", batch_idx, on_step=True, on_epoch=True)
            self.log("most", batch_idx, on_step=False, on_epoch=True, reduce_fx="max")
            return super().training_step(batch, batch_idx)

    trainer(tmp_path, max_epochs=1, log_every_n_steps=3).fit(Logs(count=26))
    with (tmp_path / "run" / "metrics.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["step"], row["idx_step"]) for row in rows if row["idx_step"]] == [("3", "2.0"), ("6", "5.0")]
    last = rows[-1]
    # 26 samples: six batches of 4, and one of 2 that weighs half.
    assert float(last["idx_epoch"]) == float(last["idx"]) == pytest.approx((15 * 4 + 6 * 2) / 26)
    assert float(last["most"]) == 6


def test_misuse_is_refused(tmp_path: Path) -> None:
    class Vector(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("x", torch.zeros(2))

    class NoLoss(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"los": torch.zeros(())}

    class Nothing(Line):
        def configure_optimizers(self) -> Any:
            return "adam"

    with pytest.raises(LoggingError, match=r"shape \(2,\)"):
        trainer(tmp_path).fit(Vector())
    with pytest.raises(DataError, match="without a loss"):
        trainer(tmp_path).fit(NoLoss())
    with pytest.raises(ConfigError, match="configure_optimizers returned str"):
        trainer(tmp_path).fit(Nothing())
    with pytest.raises(ConfigError, match="derive it from"):
        trainer(tmp_path).fit(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="manually"):
        trainer(tmp_path, gradient_clip_val=1.0).fit(TwoPlayers())
    with pytest.raises(ConfigError, match="accumulate_grad_batches=0"):
        trainer(tmp_path, accumulate_grad_batches=0)
    with pytest.raises(ConfigError, match="accelerator='cuda', devices=2"):
        trainer(tmp_path, gpus=2)
    with pytest.raises(ConfigError, match="no argument 'epochs'"):
        trainer(tmp_path, epochs=2)
    with pytest.raises(CombinationError, match="devices=1"):
        trainer(tmp_path, devices=2).fit(Line())


def test_an_exception_reaches_callbacks_and_leaves_the_trainer_usable(tmp_path: Path) -> None:
    class Stumbles(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ArithmeticError("third batch")
            return super().training_step(batch, batch_idx)

    recorder = Recorder()
    t = trainer(tmp_path, max_epochs=1, callbacks=recorder)
    with pytest.raises(ArithmeticError):
        t.fit(Stumbles())
    assert recorder.moments[-1] == "exception third batch"
    assert not t.is_live
    t.fit(Line())
    assert recorder.moments[-1] == "end fit"


def test_evaluation_leaves_modes_as_they_were(tmp_path: Path) -> None:
    class Frozen(Line):
        def on_train_epoch_start(self) -> None:
            self.dropout.eval()

        def on_train_epoch_end(self) -> None:
            self.modes = (self.training, self.dropout.training)

    module = Frozen(dropout=0.5)
    trainer(tmp_path, max_epochs=1).fit(module)
    assert module.modes == (True, False)


def test_validates_at_intervals(tmp_path: Path) -> None:
    recorder = Recorder()
    trainer(tmp_path, max_epochs=1, val_check_interval=0.25, callbacks=recorder).fit(Line())
    assert recorder.moments.count("evaluated validate True") == 4
    assert recorder.moments.index("evaluated validate True") == recorder.moments.index("batch 2 step 3") + 1


def test_test_and_predict(tmp_path: Path) -> None:
    module, t = Line(count=10), trainer(tmp_path)
    x, y = samples(10).tensors
    (metrics,) = t.test(module)
    assert metrics["count"] == 10
    assert metrics["val_loss"] == pytest.approx(F.mse_loss(module(x), y).item(), rel=1e-6)
    predictions = t.predict(module, DataLoader(samples(10), 3))
    torch.testing.assert_close(torch.cat([p.reshape(-1, 1) for p in predictions]), module(x).detach())
    assert not (tmp_path / "run").exists()


def test_lazy_layers_get_their_sizes_in_the_first_step(tmp_path: Path) -> None:
    class Lazy(Line):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d(), nn.LazyLinear(1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) + self.extra(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Lazy()
    stratagem.Trainer(strategy="single", accelerator="cpu", max_steps=2, run_dir=tmp_path).fit(module)
    assert module.extra[0].weight.shape[0] == 2
