"""`training_step_end` and its siblings are called under every strategy, and cost nothing where there are none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line
from stratagem_trainer.module.step_module import StepModule
from torch.nn import functional as F

import stratagem


class Ended(Line):
    """Its steps return predictions; what the loss needs of the whole batch is in the ends."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0]), batch[1]

    validation_step = test_step = training_step

    def training_step_end(self, outputs: list[Any]) -> torch.Tensor:
        predicted, wanted = (torch.cat(parts) for parts in zip(*outputs))
        loss = F.mse_loss(predicted, wanted)
        self.log("loss", loss)
        return loss

    def validation_step_end(self, outputs: list[Any]) -> None:
        self.log("val_loss", F.mse_loss(*(torch.cat(parts) for parts in zip(*outputs))))

    test_step_end = validation_step_end


def trainer(tmp_path: Path, **how: Any) -> stratagem.Trainer:
    settings = {"accelerator": "cpu", "enable_progress_bar": False, "seed": 1, "run_dir": tmp_path / "run"}
    return stratagem.Trainer(**{**settings, "max_epochs": 1, "enable_checkpointing": False, **how})


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_ends_make_the_loss_and_the_metrics(tmp_path: Path, strategy: str, devices: int) -> None:
    plain, ended = Line(batch_size=8 // devices), Ended(batch_size=8 // devices)
    for module in (plain, ended):
        with torch.random.fork_rng():
            last = trainer(tmp_path, strategy=strategy, devices=devices)
            last.fit(module)
    torch.testing.assert_close(ended.layer.weight, plain.layer.weight, atol=1e-7, rtol=0)
    assert "val_loss" in last.callback_metrics
    expected = trainer(tmp_path, strategy=strategy, devices=devices).test(plain)[0]["val_loss"]
    assert trainer(tmp_path, strategy=strategy, devices=devices).test(ended)[0]["val_loss"] == pytest.approx(
        expected
    )


class Wrapped(stratagem.Callback):
    def on_start(self, trainer: Any, module: Any, stage: str) -> None:
        self.called = type(trainer.prepared.module)


def test_a_module_without_ends_is_called_directly(tmp_path: Path) -> None:
    callback = Wrapped()
    trainer(tmp_path, strategy="single", callbacks=callback).fit(Line())
    assert callback.called is StepModule
