"""`TrainerSettings`: what a trainer does, apart from where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from stratagem.errors import ConfigError
from stratagem.requests import Clipping

Limit = Union[int, float, None]
"""A number of batches, or a fraction of them; None for all."""


@dataclass(frozen=True)
class TrainerSettings:
    """Checked when made; see `Trainer` for what each means."""

    max_epochs: int | None = None
    max_steps: int | None = None
    accumulate_grad_batches: int = 1
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str = "norm"
    val_check_interval: Limit = None
    check_val_every_n_epoch: int = 1
    limit_train_batches: Limit = None
    limit_val_batches: Limit = None
    limit_test_batches: Limit = None
    limit_predict_batches: Limit = None
    log_every_n_steps: int = 50
    use_distributed_sampler: bool = True

    def __post_init__(self) -> None:
        for name in ("accumulate_grad_batches", "check_val_every_n_epoch", "log_every_n_steps"):
            _refuse_unless(name, getattr(self, name), isinstance(getattr(self, name), int), 1)
        for name in ("max_epochs", "max_steps"):
            value = getattr(self, name)
            if value is not None:
                _refuse_unless(name, value, isinstance(value, int), 0)
        if self.gradient_clip_algorithm not in ("norm", "value"):
            raise ConfigError(
                f"gradient_clip_algorithm={self.gradient_clip_algorithm!r} is none of 'norm', 'value'"
            )
        if self.gradient_clip_val is not None and not self.gradient_clip_val > 0:
            raise ConfigError(
                f"gradient_clip_val={self.gradient_clip_val} must be more than 0, or None for none"
            )
        names = ("val_check_interval", *(f"limit_{s}_batches" for s in ("train", "val", "test", "predict")))
        for name in names:
            _check_limit(name, getattr(self, name))

    @property
    def epochs(self) -> int | None:
        """After how many epochs to stop: one where neither epochs nor steps are limited."""
        return 1 if self.max_epochs is None and self.max_steps is None else self.max_epochs

    @property
    def clipping(self) -> Clipping:
        """The clipping before each optimizer step."""
        if self.gradient_clip_algorithm == "value":
            return Clipping(max_value=self.gradient_clip_val)
        return Clipping(max_norm=self.gradient_clip_val)

    def limit(self, stage: str) -> Limit:
        """The limit of "train", "validate", "test" or "predict"."""
        limit: Limit = getattr(self, f"limit_{'val' if stage == 'validate' else stage}_batches")
        return limit


def limited(count: int | None, limit: Limit) -> int | None:
    """Apply a limit to a number of batches; None is unknown or all."""
    if limit is None:
        return count
    if isinstance(limit, float):
        if count is None:
            raise ConfigError(
                f"a limit of {limit} is a fraction, and this loader doesn't know its length: give a number of "
                "batches"
            )
        return int(count * limit)
    return limit if count is None else min(count, limit)


def _refuse_unless(name: str, value: object, is_int: bool, least: int) -> None:
    if not is_int or isinstance(value, bool) or value < least:  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}")


def _check_limit(name: str, limit: Limit) -> None:
    if limit is None:
        return
    whole = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
    fraction = isinstance(limit, float) and 0.0 <= limit <= 1.0
    if not (whole or fraction):
        raise ConfigError(
            f"{name}={limit!r} must be a number of batches, or a fraction from 0.0 to 1.0 of them"
        )
