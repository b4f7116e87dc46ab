"""What is logged, against what was meant: widths, copies, names, places."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_trainer import callbacks
from stratagem_trainer.loggers import Logger
from stratagem_trainer.metrics.accumulator import Accumulator
from stratagem_trainer.metrics.metrics import Metrics
from threads import on_threads
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import LoggingError


def trainer(tmp_path: Path, **how: Any) -> stratagem.Trainer:
    settings = {
        "strategy": "single",
        "accelerator": "cpu",
        "max_epochs": 1,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "run_dir": tmp_path / "run",
        "seed": 1,
        **how,
    }
    return stratagem.Trainer(**settings)


def rows_of(tmp_path: Path) -> list[dict[str, str]]:
    with (tmp_path / "run" / "metrics.csv").open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("op", ["mean", "sum", "min", "max"])
def test_sums_are_wide_enough(dtype: torch.dtype, op: str) -> None:
    total = Accumulator(op)
    for _ in range(5000):
        total.add(torch.tensor(3, dtype=dtype), 7)
    assert total.partial().value == (15_000.0 if op == "sum" else 3.0)
    # As a checkpoint keeps it.
    again = Accumulator(*total.state())
    for each in (total, again):
        each.add(torch.tensor(1, dtype=dtype), 7)
    assert again.state() == total.state()


def test_counts_are_exact_up_to_2_to_the_53() -> None:
    total = Accumulator("sum")
    total.add(torch.tensor(2**53 - 3), 1)
    for _ in range(2):
        total.add(torch.tensor(1), 1)
    assert total.partial().value == 2**53 - 1


def test_floats_and_tensors_and_shapes_mix() -> None:
    total = Accumulator("mean")
    for value in (1.0, torch.tensor(2.0, dtype=torch.bfloat16), 3.0, torch.tensor(True)):
        total.add(value, 2)
    assert total.partial().value == 7 / 4
    least = Accumulator("min")
    for value in (torch.tensor(2), 1.5, torch.tensor(math.nan)):
        least.add(value, 1)
    assert math.isnan(least.partial().value)


def test_a_constant_under_bf16_true_stays_itself(tmp_path: Path) -> None:
    class Constant(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            one = torch.ones((), dtype=next(self.parameters()).dtype)
            assert one.dtype == torch.bfloat16
            self.log("one", one, on_step=False, on_epoch=True)
            self.log("count", one, on_step=False, on_epoch=True, reduce_fx="sum")
            return self(batch[0]).mean()

    t = trainer(tmp_path, precision="bf16-true", logger=False)
    t.fit(Constant(count=2500, batch_size=1), val_dataloaders=None)
    assert (t.callback_metrics["one"], t.callback_metrics["count"]) == (1.0, 2500.0)


def test_a_tensor_that_changes_afterwards_was_logged_as_it_was(tmp_path: Path) -> None:
    class Counts(Line):
        def __init__(self) -> None:
            super().__init__(count=24)
            self.register_buffer("count_so_far", torch.zeros((), dtype=torch.int64))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.count_so_far += 1
            self.log("counted", self.count_so_far)
            self.log("both", self.count_so_far.view(1), on_epoch=True, on_step=True, reduce_fx="max")
            return super().training_step(batch, batch_idx)

    trainer(tmp_path).fit(Counts())
    rows = rows_of(tmp_path)
    assert [float(row["counted"]) for row in rows if row["counted"]] == [1, 2, 3, 4, 5, 6]
    assert [float(row["both_step"]) for row in rows if row["both_step"]] == [1, 2, 3, 4, 5, 6]


class Named(Line):
    """Logs in each way, in training and validation."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("x", float(batch_idx), on_step=True, on_epoch=True, prog_bar=True)
        self.log("s", float(batch_idx))
        self.log("e", float(batch_idx), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_x", float(batch_idx), on_step=True)
        self.log("val_s", float(batch_idx), on_step=True, on_epoch=False)
        self.log("val_e", float(batch_idx))

    test_step = validation_step


EXPECTED = {"x_step": 3, "x_epoch": 1.5, "x": 1.5, "s": 3, "e": 1.5}
EVALUATED = {"val_x_step": 3, "val_x_epoch": 1.5, "val_x": 1.5, "val_s": 3, "val_e": 1.5}


def test_one_naming_everywhere(tmp_path: Path) -> None:
    module = Named(count=16)
    seen: dict[str, Any] = {}

    class Looks(stratagem.Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            seen.update(metrics=dict(trainer.callback_metrics), bar=dict(trainer.progress_metrics()))

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            metrics = trainer.callback_metrics
            assert metrics["x"] == metrics["x_step"] == metrics["s"] == batch_idx
            # An epoch's value isn't there before it is whole.
            assert "e" not in metrics
            assert "x_epoch" not in metrics

    t = trainer(
        tmp_path,
        callbacks=[
            Looks(),
            *(
                callbacks.ModelCheckpoint(monitor=name, mode="max", dirpath=name)
                for name in (*EXPECTED, *EVALUATED)
            ),
            *(callbacks.EarlyStopping(name) for name in (*EXPECTED, *EVALUATED)),
        ],
    )
    t.fit(module)
    given = {**EXPECTED, **EVALUATED}
    assert {name: seen["metrics"][name] for name in given} == given
    assert dict(t.callback_metrics) == seen["metrics"]
    assert seen["bar"] == {name: EXPECTED[name] for name in ("x_step", "x_epoch", "x")}
    for callback in t.callbacks:
        if isinstance(callback, callbacks.ModelCheckpoint):
            assert callback.best_model_score == given[callback.monitor]
    rows = rows_of(tmp_path)
    filled = [{name: float(cell) for name, cell in row.items() if cell} for row in rows]
    assert [row["x_step"] for row in filled if "x_step" in row] == [0, 1, 2, 3]
    assert [row["val_x_step"] for row in filled if "val_x_step" in row] == [0, 1, 2, 3]
    assert [row["val_s"] for row in filled if "val_s" in row] == [0, 1, 2, 3]
    for name in ("x_epoch", "x", "e", "val_x_epoch", "val_x", "val_e"):
        assert [row[name] for row in filled if name in row] == [1.5]
    assert all(len(row) > 2 for row in filled)
    assert t.test(module) == [EVALUATED]


def test_what_epochs_hooks_and_callbacks_log_is_written(tmp_path: Path) -> None:
    class Late(stratagem.Callback):
        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            module.log("late", float(trainer.global_step))

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            module.log("begun", 5.0)

    class Hooks(Line):
        def on_train_epoch_end(self) -> None:
            self.log("ended", self.trainer.callback_metrics["begun"] + 1)

        def on_validation_epoch_end(self) -> None:
            self.log("validated", 7.0)

    t = trainer(
        tmp_path,
        max_epochs=2,
        log_every_n_steps=3,
        accumulate_grad_batches=2,
        callbacks=[Late(), callbacks.LearningRateMonitor("epoch")],
    )
    t.fit(Hooks(count=32))
    rows = rows_of(tmp_path)
    found = {
        name: [(row["step"], row[name]) for row in rows if row[name]]
        for name in ("late", "begun", "ended", "validated", "lr-Adam")
    }
    assert found == {
        "late": [("3", "3.0"), ("6", "6.0")],
        "begun": [("4", "5.0"), ("8", "5.0")],
        "ended": [("4", "6.0"), ("8", "6.0")],
        "validated": [("4", "7.0"), ("8", "7.0")],
        "lr-Adam": [("4", "0.01"), ("8", "0.01")],
    }


def test_misuse_is_refused(tmp_path: Path) -> None:
    def logs(*arguments: Any, where: str = "training_step", **how: Any) -> Line:
        class Logs(Line):
            pass

        def method(self: Any, *_: Any) -> Any:
            for name in arguments:
                self.log(name, 1.0, **how)

        setattr(Logs, where, method)
        return Logs(count=8)

    for module, words in (
        (logs("step"), "'step' is a column of every row"),
        (logs("epoch"), "'epoch' is a column of every row"),
        (logs("x", "x_step", on_epoch=True), "'x_step' and 'x' would both be 'x_step'"),
        (logs("x", on_step=True, where="on_train_epoch_end"), "on_step=True while no step is running"),
        (logs("x", reduce_fx="median"), "must be one of mean, sum, min, max"),
    ):
        with pytest.raises(LoggingError, match=words):
            trainer(tmp_path).fit(module)
    with pytest.raises(LoggingError, match="while predicting"):
        trainer(tmp_path).predict(logs("x", where="predict_step"))


class Rows(Logger):
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write(self, rows: Any) -> None:
        self.rows += [(row.step, dict(row.values)) for row in rows]


def test_what_one_rank_alone_logs_is_kept() -> None:
    logger = Rows()

    def work(collectives: Any) -> Any:
        rank = collectives.rank
        metrics = Metrics(collectives, [logger] if rank == 0 else [], 1)
        metrics.begin_steps()
        for step in (1, 2):
            metrics.log("all", 10.0 * rank + step)
            metrics.log("synced", float(rank), sync_dist=True)
            if rank:
                metrics.log("others", 100.0 * rank + step, on_step=True, on_epoch=True)
            else:
                metrics.log("first", 1.0)
            metrics.end_step(step, 0)
            metrics.end_late()
        metrics.end_steps()
        metrics.end_epoch(2, 0)
        metrics.flush()
        return metrics.latest()

    first, second, third = on_threads(3, work)
    assert logger.rows == [
        (1, {"all": 1.0, "synced": 1.0, "first": 1.0, "others_step": 101.0}),
        (2, {"all": 2.0, "synced": 1.0, "first": 1.0, "others_step": 102.0}),
        (2, {"others_epoch": 101.5}),
    ]
    assert first["others_step"] == 102.0
    assert (second["all"], third["all"]) == (12.0, 22.0)


def test_what_rank_0_alone_logs_costs_one_exchange_more_in_a_run() -> None:
    def work(collectives: Any) -> int:
        metrics = Metrics(collectives, [], 1)
        metrics.begin_steps()
        for step in range(1, 11):
            metrics.log("all", 1.0)
            if collectives.rank == 0:
                metrics.log("first", 1.0)
            metrics.end_step(step, 0)
        return collectives.calls

    assert on_threads(2, work) == [11, 11]


def test_a_rank_without_evaluation_batches_needs_log_nothing() -> None:
    def work(collectives: Any) -> Any:
        metrics = Metrics(collectives, [], 1)
        with metrics.evaluation("validate") as scope:
            if collectives.rank == 0:
                metrics.log("val", 2.0, on_step=True)
                scope.end_evaluation_step()
            return metrics.end_evaluation(scope, 0, 0)[0]

    first, second = on_threads(2, work)
    assert first == {"val_step": 2.0, "val_epoch": 2.0, "val": 2.0}
    assert second["val_epoch"] == second["val_step"] == 2.0


def test_rows_of_evaluation_steps_are_reduced_over_the_ranks_that_have_them() -> None:
    logger = Rows()

    def work(collectives: Any) -> Any:
        metrics = Metrics(collectives, [logger] if collectives.rank == 0 else [], 1)
        with metrics.evaluation("validate") as scope:
            for step in range(3 - collectives.rank):
                metrics.batch = torch.zeros(1 + collectives.rank, 2)
                metrics.log("v", 10.0 * step + collectives.rank, on_step=True, on_epoch=False)
                metrics.log("own", float(collectives.rank), on_step=True, on_epoch=False, sync_dist=False)
                scope.end_evaluation_step()
            (values,) = metrics.end_evaluation(scope, 4, 0)
        metrics.flush()
        return values

    assert on_threads(2, work) == [{"v": 20.0, "own": 0.0}] * 2
    assert logger.rows == [
        (4, {"v": pytest.approx(2 / 3), "own": 0.0}),
        (4, {"v": pytest.approx(32 / 3), "own": 0.0}),
        (4, {"v": 20.0, "own": 0.0}),
    ]


def test_fewer_evaluation_samples_than_ranks(tmp_path: Path) -> None:
    t = trainer(tmp_path, strategy="ddp", devices=2, max_epochs=1)
    t.fit(Line(count=16), val_dataloaders=DataLoader(samples(1), 4))
    assert t.callback_metrics["count"] == 1.0


def test_a_metric_objects_value_of_the_epoch_is_over_all_batches(tmp_path: Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    class Largest(Line):
        def __init__(self) -> None:
            super().__init__()
            self.largest = torchmetrics.MaxMetric()
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.losses.append(loss.item())
            self.largest(loss.detach())
            self.log("largest", self.largest, on_step=True, on_epoch=True)
            return loss

    module, run = Largest(), trainer(tmp_path, max_epochs=1)
    run.fit(module)
    assert run.callback_metrics["largest_epoch"] == pytest.approx(max(module.losses))
    assert run.callback_metrics["largest_step"] == pytest.approx(module.losses[-1])
