"""Attributes of other trainers that this trainer doesn't have, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem.errors import nearest

ABSENT: Mapping[str, str] = {
    "checkpoint_connector": "fit(ckpt_path=…) resumes a run",
    "device_ids": "runtime.session.run.devices has their indices",
    "enable_validation": "num_val_batches is empty if a fit has no validation",
    "fit_loop": "current_epoch, global_step, batch_idx, is_last_batch, max_epochs and max_steps have its position",
    "interrupted": "state.status has it",
    "lightning_module": "it is now called model",
    "predict_loop": "predicting and num_predict_batches have the state of a prediction",
    "profile": "profiler has it",
    "scaler": "prepared.precision has it",
    "test_loop": "testing and num_test_batches have the state of a test",
    "validate_loop": "validating and num_val_batches have the state of a validation",
}
"""Attribute → what to use instead."""


def absent(name: str, kind: type) -> str:
    """Return a sentence about a missing attribute: what to use instead, or the nearest attributes."""
    if name in ABSENT:
        return f"Trainer has no attribute {name!r}: {ABSENT[name]}"
    return (
        f"Trainer has no attribute {name!r}; {nearest(name, [each for each in dir(kind) if each[0] != '_'])}"
    )
