"""`TrainerSettings`: settings of a trainer, except for the selection of components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Union

from stratagem_checkpoint import InitialWeights
from stratagem_launch import STOP_SIGNALS, check_stop_signals

from stratagem import Clipping
from stratagem.errors import ConfigError
from stratagem_trainer.durations import check_seconds, duration_s, max_time_s
from stratagem_trainer.loops.policy import LoopPolicy

Limit = Union[int, float, None]
"""A number of batches, or a fraction of them; None for all."""


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of a trainer. They are validated by the constructor. See `Trainer` for their meaning."""

    max_epochs: int | None = None
    max_steps: int | None = None
    min_epochs: int | None = None
    min_steps: int | None = None
    max_time: str | timedelta | Mapping[str, int] | None = None
    num_sanity_val_steps: int | None = None
    accumulate_grad_batches: int = 1
    global_batch_size: int | None = None
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: Literal["norm", "value"] = "norm"
    val_check_interval: Limit = None
    check_val_every_n_epoch: int | None = 1
    limit_train_batches: Limit = None
    limit_val_batches: Limit = None
    limit_test_batches: Limit = None
    limit_predict_batches: Limit = None
    overfit_batches: int | float = 0
    log_every_n_steps: int | None = None
    use_distributed_sampler: bool = True
    terminate_on_nan: bool = False
    verify_checkpoints: bool = True
    initial_weights: InitialWeights | None = None
    detect_anomaly: bool = False
    deterministic: bool | Literal["warn"] = False
    benchmark: bool | None = None
    inference_mode: bool = False
    default_root_dir: str | None = None
    sync_batchnorm: bool = False
    reload_dataloaders_every_n_epochs: int = 0
    barebones: bool = False
    enable_autolog_hparams: bool = True
    model_registry: str | None = None
    time_limit: str | float | timedelta | Mapping[str, int] | None = None
    grace_period_s: float = 30.0
    stop_signals: str | Sequence[str] = STOP_SIGNALS
    requeue: bool = True
    step_timeout_s: float | None = None
    policy: LoopPolicy = field(default_factory=LoopPolicy)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None:
                _refuse_unless(name, value, isinstance(value, int), least)
        if self.global_batch_size is not None and self.accumulate_grad_batches != 1:
            raise ConfigError(
                f"global_batch_size={self.global_batch_size} determines the number of micro-batches per step, and so "
                f"does accumulate_grad_batches={self.accumulate_grad_batches}: leave one out"
            )
        if self.check_val_every_n_epoch is None and not isinstance(self.val_check_interval, int):
            raise ConfigError(
                f"check_val_every_n_epoch=None counts batches over epochs, but val_check_interval="
                f"{self.val_check_interval!r} is not a number of batches: set one"
            )
        if self.gradient_clip_algorithm not in ("norm", "value"):
            raise ConfigError(
                f"gradient_clip_algorithm={self.gradient_clip_algorithm!r} must be one of 'norm', 'value'"
            )
        limit = self.gradient_clip_val
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0
        ):
            raise ConfigError(
                f"gradient_clip_val={self.gradient_clip_val!r} must be a number above 0; 0 and None don't clip"
            )
        if not self.gradient_clip_val and self.gradient_clip_algorithm != "norm":
            raise ConfigError(
                f"gradient_clip_algorithm={self.gradient_clip_algorithm!r} clips nothing without gradient_clip_val: "
                "set it"
            )
        for most, fewest in ((self.epochs, self.min_epochs), (self.steps, self.min_steps)):
            if most is not None and fewest is not None and fewest > most:
                raise ConfigError(
                    f"a fit of at least {fewest} epochs or steps can't end after {most}: change one"
                )
        max_time_s(self.max_time)
        duration_s("time_limit", self.time_limit)
        check_stop_signals(self.stop_signals)
        check_seconds("grace_period_s", self.grace_period_s)
        if self.step_timeout_s is not None:
            check_seconds("step_timeout_s", self.step_timeout_s)
        if self.deterministic not in (True, False, "warn"):
            raise ConfigError(f"deterministic={self.deterministic!r} must be one of True, False, 'warn'")
        if self.benchmark not in (True, False, None):
            raise ConfigError(f"benchmark={self.benchmark!r} must be one of True, False, None")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.val_check_interval is not None and not self.val_check_interval:
            raise ConfigError(
                f"val_check_interval={self.val_check_interval} is not an interval: pass a number of batches, or a "
                "fraction of them, or None to validate at the end of epochs; limit_val_batches=0 turns validation off"
            )
        names = (
            "val_check_interval",
            "overfit_batches",
            *(f"limit_{s}_batches" for s in ("train", "val", "test", "predict")),
        )
        for name in names:
            _check_limit(name, getattr(self, name))

    @property
    def epochs(self) -> int | None:
        """Number of epochs after which to stop; 1 if neither epochs nor steps are limited; None for no limit."""
        if self.max_epochs is None and self.max_steps in (None, -1):
            return 1
        return None if self.max_epochs == -1 else self.max_epochs

    @property
    def steps(self) -> int | None:
        """Number of optimizer steps after which to stop; None for no limit."""
        return None if self.max_steps == -1 else self.max_steps

    @property
    def sanity_steps(self) -> int:
        """Number of validation batches in the sanity check; -1 for all."""
        return self.num_sanity_val_steps or 0

    @property
    def steps_per_row(self) -> int:
        """Number of steps per row of metrics; 0 for no rows."""
        return 50 if self.log_every_n_steps is None else self.log_every_n_steps

    @property
    def clipping(self) -> Clipping:
        """The clipping before each optimizer step."""
        limit = self.gradient_clip_val or None
        return (
            Clipping(max_value=limit) if self.gradient_clip_algorithm == "value" else Clipping(max_norm=limit)
        )

    def limit(self, stage: str) -> Limit:
        """Return the limit for "train", "validate", "test" or "predict"."""
        if self.overfit_batches and stage in ("train", "validate"):
            return self.overfit_batches
        limit: Limit = getattr(self, LIMITS[stage])
        return limit


LIMITS = {
    "train": "limit_train_batches",
    "validate": "limit_val_batches",
    "test": "limit_test_batches",
    "predict": "limit_predict_batches",
}
"""Stage → name of the setting that limits its batches."""
_LEAST = {
    "accumulate_grad_batches": 1,
    "global_batch_size": 1,
    "check_val_every_n_epoch": 1,
    "log_every_n_steps": 0,
    "num_sanity_val_steps": -1,
    "max_epochs": -1,
    "max_steps": -1,
    "min_epochs": 0,
    "min_steps": 0,
    "reload_dataloaders_every_n_epochs": 0,
}
"""Setting → its minimum. A minimum of -1 means that -1 is no limit, or all."""
_FLAGS = (
    "terminate_on_nan",
    "verify_checkpoints",
    "detect_anomaly",
    "inference_mode",
    "sync_batchnorm",
    "barebones",
    "enable_autolog_hparams",
    "requeue",
)


def limited(count: int | None, limit: Limit) -> int | None:
    """Apply a limit to a number of batches. None is an unknown number, or no limit."""
    if limit is None:
        return count
    if isinstance(limit, float):
        if count is None:
            raise ConfigError(
                f"a limit of {limit} is a fraction, but this loader has no length: pass a number of batches"
            )
        return int(count * limit)
    return limit if count is None else min(count, limit)


def train_batches(count: int | None, settings: TrainerSettings) -> int | None:
    """Return how many of a loader's `count` batches a training epoch has; None if unknown.

    Raises:
        ConfigError: the limit leaves none.
    """
    limit = settings.limit("train")
    left = limited(count, limit)
    if left == 0 and limit != 0:
        name = "overfit_batches" if settings.overfit_batches else "limit_train_batches"
        raise ConfigError(
            f"{name}={limit} leaves none of the {count} batches of an epoch to train on: raise it, or pass 0 to "
            "skip training"
        )
    return left


def validation_interval(num_batches: int | None, settings: TrainerSettings) -> int:
    """Return the number of batches between validations in an epoch; 0 for no validations in it.

    Raises:
        ConfigError: the interval is longer than an epoch.
    """
    interval = settings.val_check_interval
    if isinstance(interval, float):
        return max(1, limited(num_batches, interval) or 1)
    if settings.check_val_every_n_epoch is None:
        return interval or 0
    if interval is not None and num_batches is not None and interval > num_batches:
        raise ConfigError(
            f"val_check_interval={interval} is more than the {num_batches} batches of an epoch, so that no "
            "validation would ever run: lower it, or leave it out and use check_val_every_n_epoch"
        )
    return interval or 0


def _refuse_unless(name: str, value: object, is_int: bool, least: int) -> None:
    if not is_int or isinstance(value, bool) or value < least:  # type: ignore[operator]  # a number, by is_int
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
