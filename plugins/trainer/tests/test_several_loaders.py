"""Several loaders in a fit and in evaluations: what is read, how it is called, where a resumed run goes on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Closure, Line
from stratagem_trainer.loops.loader_index import takes_loader_index
from torch import Tensor
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError, DataError, LoggingError, WorkerError


def loader(start: int, stop: int, size: int = 2, shuffle: bool = False) -> Any:
    return DataLoader(torch.arange(float(start), float(stop)), batch_size=size, shuffle=shuffle)


class Reader(stratagem.Module):
    """Keeps what it is given, and lets every sample count in its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches: list[Any] = []
        self.hooked: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.batches.append(plain(batch))
        total = sum(each.sum() for each in tensors(batch))
        return self.weight * total + torch.rand(()) * 0 + (self.weight - total).square()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.batches.append((dataloader_idx, batch_idx, plain(batch)))
        first = next(iter(tensors(batch)))
        self.log("x", first.mean(), on_step=True, on_epoch=True)
        self.log("count", float(len(first)), reduce_fx="sum")
        self.log(f"own{dataloader_idx}", 1.0, add_dataloader_idx=False)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self.log("whole", 7.0)

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self.hooked.append((dataloader_idx, batch_idx))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return batch + 1000 * dataloader_idx  # type: ignore[no-any-return]  # the batch is a tensor

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001, momentum=0.9)


def tensors(batch: Any) -> Any:
    if batch is None:
        return []
    if isinstance(batch, Tensor):
        return [batch]
    items = batch.values() if isinstance(batch, dict) else batch
    return [each for item in items for each in tensors(item)]


def plain(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.int().tolist()
    if isinstance(batch, dict):
        return {key: plain(item) for key, item in batch.items()}
    return None if batch is None else [plain(item) for item in batch]


def trainer(folder: Path, **how: Any) -> stratagem.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "devices": 1}
    return stratagem.Trainer(accelerator="cpu", run_dir=folder / "run", seed=1, **{**quiet, **how})


def pair() -> dict[str, Any]:
    return {"a": loader(0, 6), "b": loader(10, 20)}


@pytest.mark.parametrize(
    ("mode", "a", "b"),
    [
        ("min_size", [[0, 1], [2, 3], [4, 5]], [[10, 11], [12, 13], [14, 15]]),
        (
            "max_size",
            [[0, 1], [2, 3], [4, 5], None, None],
            [[10, 11], [12, 13], [14, 15], [16, 17], [18, 19]],
        ),
        (
            "max_size_cycle",
            [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]],
            [[10, 11], [12, 13], [14, 15], [16, 17], [18, 19]],
        ),
    ],
)
def test_training_reads_loaders_side_by_side(tmp_path: Path, mode: Any, a: Any, b: Any) -> None:
    module, combined = Reader(), stratagem.CombinedLoader(pair(), mode)
    run = trainer(tmp_path, max_epochs=2)
    run.fit(module, combined)
    assert module.batches == [{"a": x, "b": y} for x, y in zip(a, b)] * 2
    assert run.num_training_batches == len(combined) == len(a)
    assert [plain(batch) for batch, _, _ in combined] == module.batches[: len(a)]
    if mode == "max_size_cycle":
        default = Reader()
        trainer(tmp_path / "default", max_epochs=2).fit(default, pair())
        assert default.batches == module.batches


def test_training_reads_loaders_one_after_the_other(tmp_path: Path) -> None:
    module, combined = Reader(), stratagem.CombinedLoader([loader(0, 3), loader(10, 12)], "sequential")
    trainer(tmp_path, max_epochs=1).fit(module, combined)
    assert module.batches == [[0, 1], [2], [10, 11]]
    assert [(plain(x), i, which) for x, i, which in combined] == [
        ([0, 1], 0, 0),
        ([2], 1, 0),
        ([10, 11], 0, 1),
    ]
    with pytest.raises(ConfigError, match="mode='longest'; allowed are min_size"):
        stratagem.CombinedLoader([], "longest")


class SaveAt(stratagem.Callback):
    def __init__(self, folder: Path, *steps: int) -> None:
        self.folder, self.steps = folder, steps

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step in self.steps:
            trainer.save_checkpoint(self.folder / str(trainer.global_step))


class Stream(torch.utils.data.IterableDataset[Any]):
    """Doesn't know how many it has."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(torch.arange(100.0, 100.0 + self.count))


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential", "stream"])
def test_a_resume_in_mid_epoch_goes_on_with_the_next_batch_of_each(tmp_path: Path, mode: Any) -> None:
    def data() -> Any:
        other = DataLoader(Stream(5), batch_size=2) if mode == "stream" else loader(100, 105, shuffle=True)
        loaders = {"a": loader(0, 15, shuffle=True), "b": other}
        return stratagem.CombinedLoader(loaders, "max_size_cycle" if mode == "stream" else mode)

    whole, steps = Reader(), (1, 2, 3, 5, 6, 8, 9, 11)
    trainer(tmp_path, max_epochs=2, callbacks=SaveAt(tmp_path, *steps)).fit(whole, data())
    for step in steps:
        if step >= len(whole.batches):
            continue
        resumed = Reader()
        trainer(tmp_path / "again", max_epochs=2).fit(resumed, data(), ckpt_path=tmp_path / str(step))
        assert resumed.batches == whole.batches[step:], step
        assert torch.equal(resumed.weight, whole.weight)
    if mode == "max_size_cycle":
        # Each pass of the shorter loader has an order of its own.
        assert [batch["b"] for batch in whole.batches[:3]] != [batch["b"] for batch in whole.batches[3:6]]


def test_other_loaders_than_the_checkpoint_had_are_refused(tmp_path: Path) -> None:
    trainer(tmp_path, max_epochs=1, callbacks=SaveAt(tmp_path, 2)).fit(Reader(), pair())
    with pytest.raises(DataError, match="2 loaders, read by max_size_cycle, and now there are 1 loaders"):
        trainer(tmp_path, max_epochs=1).fit(Reader(), [loader(0, 9)], ckpt_path=tmp_path / "2")


class Collect(stratagem.Callback):
    """Each rank's samples, gathered."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        ranks = trainer.collectives.gather_objects(plain(batch))
        self.seen.append({key: sorted(x for rank in ranks for x in rank[key] or ()) for key in ranks[0]})

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_two_ranks_share_each_loader(tmp_path: Path) -> None:
    collect, module = Collect(), Reader()
    run = trainer(tmp_path, strategy="ddp", devices=2, max_epochs=1, callbacks=collect)
    combined = stratagem.CombinedLoader({"a": loader(0, 8), "b": loader(10, 26)}, "max_size")
    run.fit(module, combined, [loader(0, 5), loader(10, 17)])
    assert [each["a"] for each in collect.seen] == [[0, 1, 2, 3], [4, 5, 6, 7], [], []]
    assert sorted(x for each in collect.seen for x in each["b"]) == list(range(10, 26))
    assert run.callback_metrics["count/dataloader_idx_0"] == 5
    assert run.callback_metrics["count/dataloader_idx_1"] == 7
    assert run.num_val_batches == [2, 2]


def test_an_evaluation_reads_loaders_one_after_the_other(tmp_path: Path) -> None:
    module, run = Reader(), trainer(tmp_path)
    results = run.validate(module, [loader(0, 4), loader(10, 13)])
    assert module.batches == [(0, 0, [0, 1]), (0, 1, [2, 3]), (1, 0, [10, 11]), (1, 1, [12])]
    assert module.hooked == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert results == [
        {
            "x_step/dataloader_idx_0": 2.5,
            "x_epoch/dataloader_idx_0": 1.5,
            "x/dataloader_idx_0": 1.5,
            "count/dataloader_idx_0": 4,
            "own0": 1,
            "whole": 7,
        },
        {
            "x_step/dataloader_idx_1": 12,
            "x_epoch/dataloader_idx_1": 11,
            "x/dataloader_idx_1": 11,
            "count/dataloader_idx_1": 3,
            "own1": 1,
            "whole": 7,
        },
    ]
    (alone,) = run.validate(Reader(), {"only": loader(0, 4)})
    assert alone["x"] == 1.5
    assert run.test(Reader(), [loader(0, 2), loader(2, 4)])[1]["count/dataloader_idx_1"] == 2
    limited = Reader()
    trainer(tmp_path, limit_val_batches=1).validate(limited, [loader(0, 4), loader(10, 13)])
    assert [batch[:2] for batch in limited.batches] == [(0, 0), (1, 0)]


def test_an_evaluation_may_read_loaders_side_by_side(tmp_path: Path) -> None:
    module = Reader()
    combined = stratagem.CombinedLoader([loader(0, 2), loader(10, 14)], "max_size_cycle")
    trainer(tmp_path).validate(module, combined)
    assert module.batches == [(0, 0, [[0, 1], [10, 11]]), (0, 1, [[0, 1], [12, 13]])]
    with pytest.raises(DataError, match="returns predictions loader by loader"):
        trainer(tmp_path).predict(module, combined)


class Totals(stratagem.Callback):
    def __init__(self) -> None:
        self.seen: list[int | None] = []

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.seen.append(trainer.num_eval_batches)


def test_an_evaluation_counts_the_batches_of_all_loaders(tmp_path: Path) -> None:
    totals = Totals()
    run = trainer(tmp_path, callbacks=[totals], limit_val_batches=2)
    run.validate(Reader(), [loader(0, 6), loader(10, 12)])
    run.validate(Reader(), loader(0, 6))
    assert totals.seen == [3, 2]


class Grows(Reader):
    """Has another number of batches in each epoch."""

    def train_dataloader(self) -> Any:
        return loader(0, 2 * (self.trainer.current_epoch + 1))


def test_loaders_that_are_made_again_are_counted_again(tmp_path: Path) -> None:
    counts: list[Any] = []
    count = stratagem.Callback()
    count.on_train_epoch_end = lambda run, module: counts.append(run.num_training_batches)
    module = Grows()
    trainer(tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1, callbacks=[count]).fit(module)
    assert counts == [1, 2, 3]
    assert len(module.batches) == 6


class Evaluations(Closure):
    """Logs how often a loss has been computed."""

    count_of_losses = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.count_of_losses += 1
        self.log("losses", float(self.count_of_losses), on_epoch=True, on_step=False, reduce_fx="sum")
        return super().training_step(batch, batch_idx)


def test_what_a_closure_logs_counts_at_the_parameters_before_the_step(tmp_path: Path) -> None:
    module = Evaluations()
    run = trainer(tmp_path, max_steps=1)
    run.fit(module)
    assert module.count_of_losses > 1
    assert run.callback_metrics["losses"] == 1


class Sums(Reader):
    """Predicts a number per batch; one of its ranks doesn't take warnings for errors."""

    def __init__(self, quiet_rank: int) -> None:
        super().__init__()
        self.quiet_rank = quiet_rank

    def on_predict_start(self) -> None:
        if self.global_rank == self.quiet_rank:
            warnings.simplefilter("ignore")

    def predict_step(self, batch: Any, batch_idx: int) -> float:  # type: ignore[override]  # a number per batch
        return float(batch.sum())


def test_the_first_process_alone_warns_of_predictions_out_of_order(tmp_path: Path) -> None:
    run = trainer(tmp_path, strategy="ddp", devices=2, strategy_options={"start_method": "fork"})
    assert run.predict(Sums(quiet_rank=0), loader(0, 8)) == [2.0, 4.0, 10.0, 12.0]
    with pytest.raises(WorkerError, match=r"rank 0 .* UserWarning: predictions can't be split into samples"):
        run.predict(Sums(quiet_rank=1), loader(0, 8))


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_hooks_of_transfers_get_the_index_of_the_loader(tmp_path: Path, stage: str) -> None:
    indices = []

    class Moved(Reader):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            assert isinstance(batch, Tensor)
            indices.append(dataloader_idx)
            return batch

    getattr(trainer(tmp_path / "one"), stage)(Moved(), loader(0, 4))
    getattr(trainer(tmp_path / "two"), stage)(Moved(), [loader(0, 4), loader(10, 12)])
    assert indices == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("stage", "setting"), [("validate", "val"), ("test", "test"), ("predict", "predict")]
)
def test_a_limit_that_leaves_nothing_is_refused_by_its_name(tmp_path: Path, stage: str, setting: str) -> None:
    run = trainer(tmp_path, **{f"limit_{setting}_batches": 0.1})
    with pytest.raises(
        ConfigError, match=rf"none of the 2 batches of a loader: raise limit_{setting}_batches"
    ):
        getattr(run, stage)(Reader(), loader(0, 4))


def test_predictions_are_a_list_for_each_loader(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    predicted = run.predict(Reader(), [loader(0, 3), loader(10, 12)])
    assert [[plain(batch) for batch in each] for each in predicted] == [[[0, 1], [2]], [[1010, 1011]]]
    assert run.predict(Reader(), loader(0, 3), return_predictions=False) == []


class WithoutIndex(Reader):
    def validation_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]  # without dataloader_idx
        self.log("x", 1.0)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("x", 1.0, add_dataloader_idx=False)

    def on_validation_batch_end(  # type: ignore[override]  # without dataloader_idx
        self, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pass


def test_what_cannot_be_distinguished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"WithoutIndex.validation_step is called .* doesn't take which"):
        trainer(tmp_path).validate(WithoutIndex(), [loader(0, 2), loader(2, 4)])
    with pytest.raises(LoggingError, match="'x' is logged with several loaders"):
        trainer(tmp_path).test(WithoutIndex(), [loader(0, 2), loader(2, 4)])


def test_a_mask_of_samples_is_no_index_of_a_loader() -> None:
    def filled_up(batch: Any, batch_idx: int, sample_mask: Any) -> None: ...

    def from_several(batch: Any, batch_idx: int, sample_mask: Any, dataloader_idx: int) -> None: ...

    assert takes_loader_index(filled_up) == ""
    assert takes_loader_index(from_several) == "always"


class TakesIndex(Line):
    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self.given.append(dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, which: int = 7) -> None:
        self.given.append(which)


def test_a_step_gets_the_index_of_a_single_loader_only_where_it_has_no_default() -> None:
    trainer = stratagem.Trainer(strategy="single", accelerator="cpu", logger=False, enable_progress_bar=False)
    for stage, expected in (("validate", {0}), ("test", {7})):
        module = TakesIndex()
        getattr(trainer, stage)(module)
        assert set(module.given) == expected
