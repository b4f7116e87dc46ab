"""`TrainerSettings`: what a trainer does, apart from where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Union

from stratagem import Clipping
from stratagem.errors import ConfigError, short

Limit = Union[int, float, None]
"""A number of batches, or a fraction of them; None for all."""


@dataclass(frozen=True)
class TrainerSettings:
    """Checked when made; see `Trainer` for what each means."""

    max_epochs: int | None = None
    max_steps: int | None = None
    min_epochs: int | None = None
    min_steps: int | None = None
    max_time: str | timedelta | Mapping[str, int] | None = None
    num_sanity_val_steps: int = 0
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
    terminate_on_nan: bool = False
    verify_checkpoints: bool = True
    detect_anomaly: bool = False
    deterministic: bool | Literal["warn"] = False
    benchmark: bool | None = None
    inference_mode: bool = False
    default_root_dir: str | None = None

    def __post_init__(self) -> None:
        for name in ("accumulate_grad_batches", "check_val_every_n_epoch", "log_every_n_steps"):
            _refuse_unless(name, getattr(self, name), isinstance(getattr(self, name), int), 1)
        _refuse_unless(
            "num_sanity_val_steps", self.num_sanity_val_steps, isinstance(self.num_sanity_val_steps, int), -1
        )
        for name in ("max_epochs", "max_steps", "min_epochs", "min_steps"):
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
        if self.gradient_clip_val is None and self.gradient_clip_algorithm != "norm":
            raise ConfigError(
                f"gradient_clip_algorithm={self.gradient_clip_algorithm!r} clips nothing without gradient_clip_val: "
                "give one"
            )
        for most, least in ((self.epochs, self.min_epochs), (self.max_steps, self.min_steps)):
            if most is not None and least is not None and least > most:
                raise ConfigError(
                    f"a fit of at least {least} epochs or steps can't end after {most}: change one"
                )
        max_time_s(self.max_time)
        if self.deterministic not in (True, False, "warn"):
            raise ConfigError(f"deterministic={self.deterministic!r} is none of True, False, 'warn'")
        if self.benchmark not in (True, False, None):
            raise ConfigError(f"benchmark={self.benchmark!r} is none of True, False, None")
        for name in ("terminate_on_nan", "verify_checkpoints", "detect_anomaly", "inference_mode"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.val_check_interval is not None and not self.val_check_interval:
            raise ConfigError(
                f"val_check_interval={self.val_check_interval} is no interval: give a number of batches, or a "
                "fraction of them, or None to validate at the end of epochs; limit_val_batches=0 validates never"
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


def max_time_s(max_time: object) -> float | None:
    """Return a limit of time in seconds: a timedelta, its keywords in a mapping, or "DD:HH:MM:SS".

    Raises:
        ConfigError: it is nothing of these, or not above 0.
    """
    if max_time is None:
        return None
    try:
        if isinstance(max_time, str):
            days, hours, minutes, seconds = map(int, max_time.strip().split(":"))
            limit = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        else:
            limit = max_time if isinstance(max_time, timedelta) else timedelta(**max_time)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        limit = timedelta(0)
    if limit <= timedelta(0):
        raise ConfigError(
            f"max_time={short(max_time)} is no time above 0: give 'DD:HH:MM:SS', a timedelta, or its keywords as "
            "{'hours': 2}"
        )
    return limit.total_seconds()


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


def train_batches(count: int | None, settings: TrainerSettings) -> int | None:
    """Return how many batches a training epoch has, of the loader's `count`; None where nobody knows.

    Raises:
        ConfigError: the limit leaves none.
    """
    left = limited(count, settings.limit_train_batches)
    if left == 0:
        raise ConfigError(
            f"limit_train_batches={settings.limit_train_batches} leaves none of the {count} batches of an epoch to "
            "train on: raise it"
        )
    return left


def validation_interval(num_batches: int | None, settings: TrainerSettings) -> int:
    """Return after how many batches to validate within an epoch; 0 for not at all.

    Raises:
        ConfigError: an epoch ends before.
    """
    interval = settings.val_check_interval
    if isinstance(interval, float):
        return max(1, limited(num_batches, interval) or 1)
    if interval is not None and num_batches is not None and interval > num_batches:
        raise ConfigError(
            f"val_check_interval={interval} is more than the {num_batches} batches of an epoch, so that nothing "
            "would ever be validated: lower it, or leave it out and use check_val_every_n_epoch"
        )
    return interval or 0


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
