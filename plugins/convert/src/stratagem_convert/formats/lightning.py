"""Checkpoints of Lightning, which its trainer goes on from: `Trainer.fit(ckpt_path=…)` of 2.0 and later."""

from __future__ import annotations

from typing import Any

from stratagem_convert.formats.stored import Weights
from stratagem_convert.formats.structure import state_dict_of, write_structure
from stratagem_convert.formats.training import EPOCH, STEP, WEIGHTS, Training

VERSION, LOOPS = "pytorch-lightning_version", "loops"
_OLDEST = "2.0.0"
"""What a written file says it is of: later ones migrate it, and nothing in it has changed since."""


def write_checkpoint(weights: Weights, path: str) -> None:
    """Write a Lightning checkpoint, with what its trainer needs to go on where the weights come with that."""
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
    """The state of Lightning's fit loop, of which it takes what is there, as it is after a batch."""
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
    """Return the epoch and batch with which a run continues, by Lightning's loops; [epoch, 0] if they don't say.

    A checkpoint of Lightning's that was saved when an epoch ended is one of the next epoch's beginning.
    """
    try:
        loop = loops["fit_loop"]
        epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
        if batches["is_last_batch"] or epochs["processed"] == epochs["ready"]:
            return [int(epochs["ready"]), 0]
        return [int(epochs["processed"]), int(batches["current"]["ready"])]
    except (KeyError, TypeError, ValueError):
        return [epoch, 0]
