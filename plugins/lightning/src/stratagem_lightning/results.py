"""The values that `validate` and `test` return."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_trainer.metrics.scope import LOADER


def without_steps(metrics: Mapping[str, float]) -> dict[str, float]:
    """If a value has entries for steps and for the epoch, keep only the epoch's, `x_epoch`."""
    both = {
        (base, index)
        for base, index in map(_parts, metrics)
        if all(f"{base}{ending}{index}" in metrics for ending in ("_step", "_epoch"))
    }
    dropped = {f"{base}{ending}{index}" for base, index in both for ending in ("", "_step")}
    return {key: value for key, value in metrics.items() if key not in dropped}


def _parts(key: str) -> tuple[str, str]:
    base, loader, index = key.partition(LOADER)
    return base, loader + index
