"""What an evaluation keeps, counts and shows, and what a sanity check leaves as it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import batches
from small import Line
from stratagem_trainer.loops.evaluate import num_batches, total_batches
from torch import nn

import stratagem
from stratagem.errors import ConfigError


def trainer(tmp_path: Path, **how: Any) -> stratagem.Trainer:
    return stratagem.Trainer(
        **{
            "strategy": "single",
            "accelerator": "cpu",
            "max_epochs": 1,
            "limit_train_batches": 2,
            "enable_progress_bar": False,
            "enable_checkpointing": False,
            "logger": False,
            "run_dir": tmp_path / "run",
            "seed": 1,
            **how,
        }
    )


class Stream:
    """Batches that are only known as they come."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter([batch for batch, _ in zip(batches(), range(self.count))])


class Watched(Line):
    """Notes each batch of each stage."""

    def __init__(self, batches_of_validation: Any) -> None:
        super().__init__()
        self.batches_of_validation, self.evaluated = batches_of_validation, []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluated.append((self.trainer.sanity_checking, dataloader_idx, batch_idx))
        super().validation_step(batch, batch_idx)

    def val_dataloader(self) -> Any:
        return self.batches_of_validation


@pytest.mark.parametrize(
    ("loader", "steps", "limit", "tried", "validated"),
    [
        (Stream(5), 2, None, 2, 5),
        (Stream(5), 7, None, 5, 5),
        (Stream(5), -1, None, 5, 5),
        (Stream(5), -1, 3, 3, 3),
        (Stream(5), 2, 3, 2, 3),
        (Stream(5), 4, 3, 3, 3),
        (Stream(5), 0, None, 0, 5),
        (batches(), 2, None, 2, 8),
        (batches(), -1, None, 8, 8),
        (batches(), 9, 3, 3, 3),
        (batches(), 1, 3, 1, 3),
    ],
)
def test_a_sanity_check_tries_so_many_batches(
    loader: Any, steps: int, limit: Any, tried: int, validated: int, tmp_path: Path
) -> None:
    module = Watched(loader)
    trainer(tmp_path, num_sanity_val_steps=steps, limit_val_batches=limit).fit(module, batches())
    assert module.evaluated == [
        *[(True, 0, index) for index in range(tried)],
        *[(False, 0, index) for index in range(validated)],
    ]


def test_a_sanity_check_tries_batches_of_each_loader(tmp_path: Path) -> None:
    module = Watched([batches(), Stream(5)])
    trainer(tmp_path, num_sanity_val_steps=1, limit_val_batches=2).fit(module, batches())
    assert module.evaluated[:2] == [(True, 0, 0), (True, 1, 0)]
    assert module.evaluated[2:] == [(False, loader, index) for loader in (0, 1) for index in (0, 1)]


class Heard(stratagem.Callback):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        self.calls.append(("sanity start", trainer.sanity_checking))

    def on_sanity_check_end(self, trainer: Any, module: Any) -> None:
        self.calls.append(("sanity end", trainer.sanity_checking))

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.calls.append("start")

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        self.calls.append("epoch start")

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        self.calls.append("epoch end")

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.calls.append("end")

    def on_evaluation_start(self, trainer: Any, module: Any, stage: str) -> None:
        self.calls.append(("evaluation start", stage))

    def on_evaluation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, stage: str
    ) -> None:
        self.calls.append(("batch", batch_idx, stage))

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.calls.append(("evaluation end", stage))


def test_who_hears_of_a_sanity_check_and_of_a_validation(tmp_path: Path) -> None:
    heard = Heard()
    trainer(tmp_path, num_sanity_val_steps=1, limit_val_batches=1, callbacks=[heard]).fit(Line(), batches())
    assert heard.calls == [
        ("sanity start", True),
        *["start", "epoch start", "epoch end", "end"],
        ("sanity end", True),
        ("evaluation start", "validate"),
        *["start", "epoch start", ("batch", 0, "validate"), "epoch end", "end"],
        ("evaluation end", "validate"),
    ]


class Draws(Line):
    """Validates with random numbers, and keeps a state."""

    def __init__(self) -> None:
        super().__init__(dropout=0.5)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", float(torch.rand(())))


def test_neither_a_sanity_check_nor_a_validation_changes_what_is_trained(tmp_path: Path) -> None:
    trained = []
    for steps, limit in ((0, 0), (2, 0), (0, 2), (-1, 3)):
        module = Draws()
        settings = {"num_sanity_val_steps": steps, "limit_val_batches": limit, "val_check_interval": 1}
        run = trainer(
            tmp_path, max_epochs=2, **(settings if limit else {**settings, "val_check_interval": None})
        )
        run.fit(module, batches())
        trained.append(module.layer.weight.detach().clone())
        assert ("val_loss" in run.callback_metrics) == (limit > 0)
    for other in trained[1:]:
        assert torch.equal(other, trained[0])


class Modes(Line):
    """Has a part that is to stay in evaluation mode, and notes modes and gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Dropout().eval()
        self.seen_modes: list[Any] = []

    def note(self) -> None:
        self.seen_modes.append(
            (self.training, self.frozen.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        )

    def on_train_epoch_start(self) -> None:
        self.frozen.eval()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.note()


@pytest.mark.parametrize("inference_mode", [False, True])
def test_an_evaluation_leaves_each_part_in_its_mode(inference_mode: bool, tmp_path: Path) -> None:
    module = Modes()
    how = {"limit_val_batches": 1, "num_sanity_val_steps": 0, "val_check_interval": 1}
    trainer(tmp_path, inference_mode=inference_mode, **how).fit(module, batches())
    training, evaluating = (True, False, True, False), (False, False, False, inference_mode)
    assert module.seen_modes == [training, evaluating, training, evaluating]


def test_a_module_is_in_its_mode_again_where_an_evaluation_fails(tmp_path: Path) -> None:
    class Fails(Line):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise ArithmeticError("no figure")

    module = Fails()
    module.dropout.eval()
    with pytest.raises(ArithmeticError, match="no figure"):
        trainer(tmp_path).validate(module)
    assert (module.training, module.dropout.training) == (True, False)


def test_the_end_of_an_epoch_reads_what_was_logged_so_far(tmp_path: Path) -> None:
    class Reads(Line):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("index", float(batch_idx + 10 * dataloader_idx))

        def on_validation_epoch_end(self) -> None:
            self.read = dict(self.trainer.callback_metrics)

    module = Reads()
    trainer(tmp_path, limit_val_batches=3).validate(module)
    assert module.read["index"] == 1.0
    trainer(tmp_path, limit_val_batches=3).validate(module, [batches(), batches()])
    assert (module.read["index/dataloader_idx_0"], module.read["index/dataloader_idx_1"]) == (1.0, 11.0)


def test_what_an_evaluation_returns(tmp_path: Path) -> None:
    """A list of metrics by loader, also of a list with one loader; a prediction's is flat then."""

    class Predicts(Line):
        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
            return super().predict_step(batch, batch_idx)

    run, module = trainer(tmp_path, limit_val_batches=1, limit_predict_batches=2), Predicts()
    assert [sorted(each) for each in run.validate(module, [batches()])] == [["count", "val_loss"]]
    predicted = run.predict(module, [batches()])
    assert [each.shape for each in predicted] == [(4, 1), (4, 1)]
    assert not predicted[0].requires_grad
    # Two loaders, of which the second one is another's first batch: each has its own list.
    first, second = run.predict(module, [batches(1), batches(3)])
    assert (len(first), len(second)) == (1, 2)


def loaders(*counts: int | None) -> list[Any]:
    return [SimpleNamespace(num_batches=count) for count in counts]


def test_how_many_batches_an_evaluation_has() -> None:
    def state(limit: Any) -> Any:
        return SimpleNamespace(settings=SimpleNamespace(limit=lambda stage: limit))

    assert total_batches(state(None), loaders(3, 4), "validate") == 7
    assert total_batches(state(None), loaders(3, 0), "validate") == 3
    assert total_batches(state(None), loaders(3, None), "validate") is None
    assert total_batches(state(2), loaders(3, 1), "validate") == 3
    assert total_batches(state(0), loaders(3, 4), "validate") == 0
    assert num_batches(state(0.5), loaders(4)[0], "validate") == 2
    assert num_batches(state(0.1), loaders(0)[0], "validate") == 0
    with pytest.raises(
        ConfigError, match=r"a limit of 0.1 leaves none of the 1 batches .* limit_val_batches"
    ):
        num_batches(state(0.1), loaders(1)[0], "validate")
