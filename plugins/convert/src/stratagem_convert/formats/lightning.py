"""Checkpoints from which Lightning's trainer can resume: `Trainer.fit(ckpt_path=…)` of 2.0 and later."""

from __future__ import annotations

from typing import Any

from stratagem_convert.formats.stored import Weights
from stratagem_convert.formats.structure import state_dict_of, write_structure
from stratagem_convert.formats.training import EPOCH, STEP, WEIGHTS, Training

VERSION, LOOPS = "pytorch-lightning_version", "loops"
_OLDEST = "2.0.0"
"""Version in a written file. Later versions migrate the file. Nothing in it has changed since this one."""


def write_checkpoint(weights: Weights, path: str) -> None:
    """Write a Lightning checkpoint. With a training, it also has what Lightning's trainer needs to resume."""
    training = weights.training
    around: dict[str, Any] = {
        EPOCH: int(weights.facts.get(EPOCH, "0")),
        STEP: int(weights.facts.get(STEP, "0")),
        VERSION: _OLDEST,
        LOOPS: {},
    }
    if training is not None:
        training.require_place(weights.path)
        around = {**around, **training.as_torch(), LOOPS: {"fit_loop": _loop(training)}, "callbacks": {}}
    write_structure({**around, WEIGHTS: state_dict_of(weights)}, weights, path)


def _loop(training: Training) -> dict[str, Any]:
    """Return the state of Lightning's fit loop after a batch. Lightning accepts a partial state."""
    epoch, batch, step = training.epoch, training.batch, training.step
    begun = epoch + (batch > 0)
    epochs = {"ready": begun, "started": begun, "processed": epoch, "completed": epoch}
    batches = {
        "total": dict.fromkeys(("ready", "started", "processed", "completed"), max(step, batch)),
        "current": dict.fromkeys(("ready", "started", "processed", "completed"), batch),
        "is_last_batch": False,
    }
    steps = {"total": {"ready": step, "completed": step}, "current": {"ready": 0, "completed": 0}}
    zeroed = {
        "total": {"ready": step, "started": step, "completed": step},
        "current": {"ready": 0, "started": 0, "completed": 0},
    }
    return {
        "epoch_progress": {"total": epochs, "current": dict(epochs)},
        "epoch_loop.batch_progress": batches,
        "epoch_loop.state_dict": {"_batches_that_stepped": step},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {"step": steps, "zero_grad": zeroed}
        },
        "epoch_loop.manual_optimization.optim_step_progress": steps,
    }


def epoch_and_batch(loops: Any, epoch: int) -> list[int]:
    """Return the epoch and batch at which a run resumes, from Lightning's loops; [epoch, 0] if they lack it.

    A checkpoint that Lightning saved at the end of an epoch is one of the beginning of the next epoch.
    """
    try:
        loop = loops["fit_loop"]
        epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
        if batches["is_last_batch"] or epochs["processed"] == epochs["ready"]:
            return [int(epochs["ready"]), 0]
        return [int(epochs["processed"]), int(batches["current"]["ready"])]
    except (KeyError, TypeError, ValueError):
        return [epoch, 0]
