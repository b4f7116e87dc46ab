"""Attributes of other trainers that this one doesn't have, each with what says the same here."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem.errors import nearest

ABSENT: Mapping[str, str] = {
    "checkpoint_connector": "fit(ckpt_path=…) continues a run",
    "device_ids": "runtime.session.run.devices has their indices",
    "enable_validation": "num_val_batches is empty where a fit has no validation",
    "fit_loop": "current_epoch, global_step, batch_idx, is_last_batch, max_epochs and max_steps say where a fit is",
    "interrupted": "state.status says so",
    "lightning_module": "it is now called model",
    "predict_loop": "predicting and num_predict_batches say where a prediction is",
    "profile": "profiler has it",
    "scaler": "prepared.precision has it",
    "test_loop": "testing and num_test_batches say where a test is",
    "validate_loop": "validating and num_val_batches say where a validation is",
}
"""Attribute → what to ask instead."""


def absent(name: str, kind: type) -> str:
    """Return a sentence about an attribute that a trainer doesn't have."""
    if name in ABSENT:
        return f"Trainer has no attribute {name!r}: {ABSENT[name]}"
    return (
        f"Trainer has no attribute {name!r}; {nearest(name, [each for each in dir(kind) if each[0] != '_'])}"
    )
