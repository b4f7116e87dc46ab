"""`Metrics` by itself, on one rank and on ranks that are threads."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_trainer.loggers import Logger
from stratagem_trainer.metrics import row_buffer as metrics_module
from stratagem_trainer.metrics.metrics import Metrics
from threads import on_threads
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from stratagem.collectives.local import LocalCollectives
from stratagem.errors import LoggingError

ALONE = LocalCollectives(torch.device("cpu"))


class Rows(Logger):
    def __init__(self) -> None:
        self.groups: list[list[Any]] = []

    def write(self, rows: Any) -> None:
        self.groups.append([(row.step, row.epoch, dict(row.values)) for row in rows])

    @property
    def rows(self) -> list[Any]:
        return [row for group in self.groups for row in group]


def begun(logger: Rows | None = None, every: int = 1, collectives: Any = ALONE) -> Metrics:
    made = Metrics(collectives, [] if logger is None else [logger], every)
    made.begin_steps()
    return made


# Steps ------------------------------------------------------------------------------------------------


def test_every_so_many_steps_are_written_and_the_others_forgotten() -> None:
    logger = Rows()
    made = begun(logger, every=3)
    for step in range(1, 8):
        made.log("x", float(step))
        if step == 2:
            made.log("once", 1.0)
        made.end_step(step, 4)
        made.log("late", 10.0 * step)
        made.end_late()
    assert logger.groups == []  # handed out in groups
    made.flush()
    expected = [(3, 4, {"x": 3.0}), (3, 4, {"late": 30.0}), (6, 4, {"x": 6.0}), (6, 4, {"late": 60.0})]
    merged = [(step, 4, {"x": float(step), "late": 10.0 * step}) for step in (3, 6)]
    assert logger.rows in (expected, merged)
    assert made.latest() == {"x": 7.0, "once": 1.0, "late": 70.0}


def test_what_callbacks_log_after_a_step_is_in_its_row() -> None:
    logger = Rows()
    made = begun(logger, every=2)
    for step in (1, 2, 3):
        made.log("x", float(step))
        made.end_step(step, 0)
        made.log("late", float(step))
        made.end_late()
    made.flush()
    assert logger.rows == [(2, 0, {"x": 2.0, "late": 2.0})]


def test_a_row_that_a_checkpoint_has_written_is_not_written_again() -> None:
    logger = Rows()
    made = begun(logger)
    made.log("x", 1.0)
    made.end_step(1, 0)
    made.log_late()
    made.flush()
    made.log_late()
    made.end_late()
    made.flush()
    assert logger.rows == [(1, 0, {"x": 1.0})]
    made.log("x", 2.0)
    made.end_step(2, 0)
    made.log_late()
    made.log("later", 3.0)  # by a callback after the one that saved
    made.end_late()
    made.flush()
    assert logger.rows[1:] == [(2, 0, {"x": 2.0}), (2, 0, {"later": 3.0})]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_that_an_exception_ended_is_written(world_size: int) -> None:
    logger = Rows()

    def work(collectives: Any) -> None:
        made = begun(logger if collectives.rank == 0 else None, collectives=collectives)
        made.log("x", 1.0)
        made.end_step(1, 0)
        made.flush()
        made.flush()

    on_threads(world_size, work)
    assert logger.rows == [(1, 0, {"x": 1.0})]


def test_what_a_batch_logs_that_does_not_count_is_dropped() -> None:
    made = begun()
    with made.discarded():
        made.log("x", 1.0)
    made.log("y", 2.0)
    assert made.latest() == {"y": 2.0}


def test_a_step_that_logged_nothing_has_no_row() -> None:
    logger = Rows()
    made = begun(logger)
    made.end_step(1, 0)
    made.end_late()
    made.end_epoch(1, 0)
    made.flush()
    assert logger.groups == []


def test_what_a_skipped_step_logs_is_in_the_row_of_the_next() -> None:
    logger = Rows()
    made = begun(logger, every=2)
    made.log("first", 1.0)
    made.end_late()  # no step has ended
    made.end_step(2, 0)
    made.end_late()
    made.end_step(3, 0)
    made.end_late()
    made.log("second", 2.0)
    made.end_late()
    made.end_step(4, 0)
    made.end_late()
    made.flush()
    assert logger.rows == [(2, 0, {"first": 1.0}), (4, 0, {"second": 2.0})]


def test_rank_zeros_value_alone_is_logged() -> None:
    def work(collectives: Any) -> Any:
        made = begun(collectives=collectives)
        with pytest.raises(LoggingError, match="leave out one"):
            made.log("both", 1.0, rank_zero_only=True, sync_dist=True)
        with made.evaluation("validate") as scope:
            made.log("x", float(collectives.rank), rank_zero_only=True)
            has = "x" in scope._sums
            scope.end_evaluation_step()
            made.end_evaluation(scope, 1, 0)
        return has

    assert on_threads(3, work) == [True, False, False]


def test_while_muted_nothing_is_logged() -> None:
    made = begun()
    made.muted = True
    made.log("x", torch.zeros(3))  # not even looked at
    made.muted = False
    made.log("y", 1.0)
    assert made.latest() == {"y": 1.0}


def test_rows_go_out_when_there_are_many(monkeypatch: Any) -> None:
    logger = Rows()
    made = begun(logger)
    monkeypatch.setattr(metrics_module, "FLUSH_SECONDS", 1e9)
    monkeypatch.setattr(metrics_module, "FLUSH_ROWS", 3)
    for step in range(1, 8):
        made.log("x", float(step))
        made.end_step(step, 0)
        made.end_late()
    assert [len(group) for group in logger.groups] == [3, 3]


def test_rows_go_out_when_the_last_went_long_ago(monkeypatch: Any) -> None:
    logger, now = Rows(), [1000.0]
    monkeypatch.setattr(metrics_module.time, "perf_counter", lambda: now[0])
    made = begun(logger)
    for step, passed_s in enumerate((0.9, 0.2, 0.9, 0.05), 1):
        now[0] += passed_s * metrics_module.FLUSH_SECONDS
        made.log("x", float(step))
        made.end_step(step, 0)
        made.end_late()
    assert [[row[0] for row in group] for group in logger.groups] == [[1, 2]]
    now[0] += 2 * metrics_module.FLUSH_SECONDS
    made.log("x", 5.0)
    made.end_step(5, 0)
    made.end_late()
    assert [[row[0] for row in group] for group in logger.groups] == [[1, 2], [3, 4, 5]]


def test_a_tensor_is_kept_as_it_was_with_one_element_of_any_shape() -> None:
    made, value = begun(), torch.full((1, 1), 2.0, requires_grad=True)
    made.log("x", value * 3)
    made.log("y", value.detach())
    with torch.no_grad():
        value.fill_(9.0)
    assert made.latest() == {"x": 6.0, "y": 2.0}
    assert all(type(each) is float for each in made.latest().values())
    with pytest.raises(LoggingError, match="shape"):
        made.log("z", torch.zeros(2))


def test_of_a_dtensor_the_whole_is_logged() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        made = begun()
        made.log("x", distribute_tensor(torch.full((1,), 4.0), mesh, [Shard(0)]))
        assert made.latest() == {"x": 4.0}
        # A number is kept: no other rank has to be there when it is read.
        assert type(made._train.step.values["x"]) is float
    finally:
        dist.destroy_process_group()


def test_what_one_rank_alone_logs_late_is_written() -> None:
    logger = Rows()

    def work(collectives: Any) -> None:
        made = begun(logger if collectives.rank == 0 else None, collectives=collectives)
        made.log("x", 1.0)
        made.end_step(1, 0)
        if collectives.rank:
            made.log("late", 2.0)
        made.end_late()
        made.flush()

    on_threads(2, work)
    assert logger.rows == [(1, 0, {"x": 1.0, "late": 2.0})]


# Weights ----------------------------------------------------------------------------------------------


def test_means_of_an_epoch_weigh_batches_by_their_size() -> None:
    made = begun()
    for size, value in ((3, 1.0), (1, 5.0)):
        made.batch = torch.zeros(size, 2)
        made.log("by_batch", value, on_epoch=True)
        made.log("by_given", value, on_step=False, on_epoch=True, batch_size=1)
        made.log("sum", value, on_step=False, on_epoch=True, reduce_fx="sum")
        made.log("max", value, on_step=False, on_epoch=True, reduce_fx="max")
        made.end_step(size, 0)
        made.end_late()
    for batch, value in ((object(), 4.0), (torch.zeros(3, 2), 8.0)):  # one of no size weighs as one sample
        made.batch = batch
        made.log("unsized", value, on_step=False, on_epoch=True)
    made.end_steps()
    assert made.batch is None
    made.end_epoch(2, 0)
    latest = made.latest()
    assert {name: latest[name] for name in ("by_batch_step", "by_batch_epoch", "by_batch")} == {
        "by_batch_step": 5.0,
        "by_batch_epoch": 2.0,
        "by_batch": 2.0,
    }
    assert [latest[name] for name in ("by_given", "sum", "max", "unsized")] == [3.0, 6.0, 5.0, 7.0]


def test_means_over_ranks_weigh_batches_by_their_size() -> None:
    def work(collectives: Any) -> Any:
        made = begun(collectives=collectives)
        made.batch = torch.zeros(1 + 2 * collectives.rank, 2)
        made.log("synced", float(collectives.rank), sync_dist=True)
        made.log("sum", 1.0 + collectives.rank, sync_dist=True, reduce_fx="sum")
        made.log("whole", float(collectives.rank), on_step=False, on_epoch=True, sync_dist=True)
        made.log("both", float(collectives.rank), on_step=True, on_epoch=True, sync_dist=True)
        made.end_step(1, 0)
        during = made.latest()
        made.end_late()
        made.end_steps()
        made.end_epoch(1, 0)
        return during, made.latest()

    for during, after in on_threads(2, work):
        assert during == {"synced": 0.75, "sum": 3.0, "both": 0.75, "both_step": 0.75}
        assert after == {**during, "whole": 0.75, "both_epoch": 0.75}


# Epochs -----------------------------------------------------------------------------------------------


def test_an_epoch_begins_again_after_its_end() -> None:
    logger = Rows()
    made = begun(logger)
    for epoch, value in ((0, 1.0), (1, 5.0)):
        made.begin_steps()
        made.log("x", value, on_step=False, on_epoch=True)
        made.end_step(epoch + 1, epoch)
        made.end_late()
        made.end_steps()
        made.log("outside", value)
        made.end_epoch(epoch + 1, epoch)
    made.flush()
    assert logger.rows == [(1, 0, {"x": 1.0, "outside": 1.0}), (2, 1, {"x": 5.0, "outside": 5.0})]


def half_an_epoch() -> Metrics:
    made = begun()
    for size, value in ((3, 1.0), (1, 5.0)):
        made.batch = torch.zeros(size, 2)
        for reduce_fx in ("mean", "sum", "min", "max"):
            made.log(reduce_fx, value, on_step=False, on_epoch=True, reduce_fx=reduce_fx)
        made.log("now", value)
        made.end_step(size, 0)
    return made


@pytest.mark.parametrize("logs_again", [True, False])
def test_a_resumed_epoch_ends_as_the_whole_one(logs_again: bool) -> None:
    def end(made: Metrics) -> dict[str, float]:
        if logs_again:
            made.batch = torch.zeros(4, 2)
            for reduce_fx in ("mean", "sum", "min", "max"):
                made.log(reduce_fx, 3.0, on_step=False, on_epoch=True, reduce_fx=reduce_fx)
        made.end_step(9, 0)
        made.end_steps()
        made.end_epoch(9, 0)
        return made.latest()

    whole, resumed, other = half_an_epoch(), begun(), begun()
    state = whole.state_dict()
    resumed.load_state_dict(state, with_epoch=True)
    assert resumed.latest() == {"now": 5.0}
    assert resumed.state_dict() == state
    other.load_state_dict(state, with_epoch=False)  # at another world size
    assert other.latest() == {"now": 5.0}
    for made in (whole, resumed):
        expected = [2.5, 9.0, 1.0, 5.0] if logs_again else [2.0, 6.0, 1.0, 5.0]
        ended = end(made)
        assert [ended[name] for name in ("mean", "sum", "min", "max")] == expected
    assert end(other).get("mean") == (3.0 if logs_again else None)
    begun().load_state_dict({}, with_epoch=True)


# Evaluations ------------------------------------------------------------------------------------------


def test_an_evaluation_between_steps_leaves_these_alone() -> None:
    made = begun()
    made.batch = "the batch of training"
    made.log("x", 2.0, on_epoch=True)
    with made.evaluation("validate") as scope:
        for value in (1.0, 3.0):
            made.batch = torch.zeros(2, 2)
            made.log("v", value)
            made.log("rows", value, on_step=True, on_epoch=False)
            scope.end_evaluation_step()
        (ended,) = made.end_evaluation(scope, 1, 0)
    assert ended == {"v": 2.0, "rows": 3.0}
    assert made.batch == "the batch of training"
    made.batch = None
    made.log("x", 4.0, on_epoch=True)
    made.end_steps()
    made.end_epoch(2, 0)
    assert made.latest()["x_epoch"] == 3.0
    assert made.latest()["v"] == 2.0


def test_values_of_several_loaders_have_the_loaders_number() -> None:
    made, scopes = begun(), []
    with made.evaluation("validate") as whole:
        for index in range(2):
            with made.evaluation("validate", index) as scope:
                made.log("v", float(index))
                if index:
                    made.log("own", 5.0, add_dataloader_idx=False)
                scope.end_evaluation_step()
            scopes.append(scope)
        made.log("all", 7.0)
        ended = made.end_evaluation(whole, 1, 0, scopes)
    assert ended == [
        {"v/dataloader_idx_0": 0.0, "all": 7.0},
        {"v/dataloader_idx_1": 1.0, "own": 5.0, "all": 7.0},
    ]
    assert made.latest() == {**ended[0], **ended[1]}


def test_an_object_is_kept_for_the_epoch_where_it_is_logged_for_it() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    module = torch.nn.Module()
    module.each, module.whole = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
    made = Metrics(ALONE, [], 1, module)
    made.begin_steps()
    for step, value in ((1, 2.0), (2, 4.0)):
        made.log("each", _updated(module.each, value), on_epoch=False)
        made.log("whole", _updated(module.whole, value), on_step=True, on_epoch=True)
        assert list(made._train.objects) == ["whole"]
        made.end_step(step, 0)
        made.end_late()
    assert made.latest() == {"each": 4.0, "whole": 4.0, "whole_step": 4.0}
    made.end_steps()
    made.end_epoch(2, 0)
    assert made.latest()["whole_epoch"] == 3.0
    assert float(module.each.compute()) == 3.0  # its user's to reset
    assert int(module.whole._update_count) == 0


def _updated(metric: Any, value: float) -> Any:
    metric(value)
    return metric


# The bar ----------------------------------------------------------------------------------------------


def test_the_bar_has_what_was_logged_for_it_in_its_order() -> None:
    made = begun()
    made.log("b", 2.0, prog_bar=True)
    made.log("hidden", 1.0)
    made.log("a", 1.0, prog_bar=True, on_epoch=True)
    assert list(made.on_bar().items()) == [("b", 2.0), ("a_step", 1.0), ("a", 1.0)]
    made.end_steps()
    made.end_epoch(1, 0)
    assert list(made.on_bar()) == ["b", "a_step", "a_epoch", "a"]


# Losses -----------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_reported_once() -> None:
    made = begun()
    made.losses.add(3, torch.tensor(math.nan))
    with pytest.warns(UserWarning, match="the loss is nan at step 3: the run goes on"):
        made.end_epoch(3, 0)
    made.end_epoch(3, 0)
    made.flush()  # another warning would be an error


def test_losses_are_looked_at_at_logging_points_when_that_is_due() -> None:
    made = begun(every=2)
    for _ in range(64):
        made.losses.add(1, torch.tensor(math.inf))
    made.end_step(1, 0)
    with pytest.warns(UserWarning, match="the loss is inf at step 1"):
        made.end_step(2, 0)


def test_ranks_tell_together_of_the_first_loss_that_is_not_finite() -> None:
    def work(collectives: Any) -> Any:
        made = begun(collectives=collectives)
        # Rank 0's is fine, and the third rank's came first.
        if collectives.rank:
            made.losses.add(9 - collectives.rank * 2, torch.tensor(math.nan))
        made.log("x", 1.0)
        made.end_step(9, 0)
        made.end_late()
        made.end_epoch(9, 0)
        return made.losses.is_reported

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert on_threads(3, work) == [True, True, True]
    reported = [str(each.message) for each in seen if "loss" in str(each.message)]
    assert reported == [
        "the loss isn't finite at step 5, on rank 2: the run goes on with it; "
        "Trainer(terminate_on_nan=True) ends it there"
    ]


def test_ranks_whose_losses_broke_at_the_same_step_are_named() -> None:
    def work(collectives: Any) -> Any:
        made = begun(collectives=collectives)
        made.losses.add(4, torch.tensor(math.nan if collectives.rank < 2 else 1.0))
        made.end_epoch(9, 0)
        return made.losses.is_reported

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        on_threads(3, work)
    reported = [str(each.message) for each in seen if "loss" in str(each.message)]
    assert len(reported) == 1
    assert reported[0].startswith("the loss is nan at step 4, on ranks 0, 1: the run goes on")
