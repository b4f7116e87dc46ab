"""`Monitor`: a logged metric on which a callback decides, read so that all ranks decide the same."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem_trainer.view import TrainerView

Mode = Literal["min", "max"]
POSITION = ("epoch", "step")
"""Not metrics: these names are the position of the run."""


@dataclass(frozen=True)
class Reading:
    """What rank 0 reads at one point of the run."""

    value: float | None
    """None if no value of this name has been logged."""
    logged: tuple[str, ...]
    from_evaluation: bool


class Monitor:
    """A metric by name, and which of its values are better.

    Only rank 0's value counts. A metric that was logged without `sync_dist` differs between ranks, and ranks that
    decide differently would wait for each other forever.

    Args:
        name: name under which the module logs it.
        mode: "min" or "max".
        owner: class of the callback, for error messages.
        strict: whether to raise an error if the metric is missing.

    Raises:
        ConfigError: the name is empty or not a string, or the mode is unknown.
    """

    def __init__(self, name: str, mode: Mode, owner: str, strict: bool = True) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{owner} got monitor={name!r}; pass a logged metric's name")
        check_mode(mode, owner)
        self.name = name
        self.mode = mode
        self.owner = owner
        self.strict = strict
        self.from_evaluation = False
        """Whether evaluations log it. Its value is then up to date at the end of an evaluation."""
        self._evaluated = False
        self._missed = False
        self._seen = False
        self._before: float | None = None

    def before_evaluation(self, trainer: TrainerView) -> None:
        """Remember the value, so that `after_evaluation` can compare it. Every rank calls both."""
        self._before = trainer.callback_metrics.get(self.name)

    def after_evaluation(self, trainer: TrainerView) -> None:
        """Find out whether the evaluation has logged the metric. Collective."""
        self._evaluated = True
        if not self.from_evaluation:
            changed = _differ(trainer.callback_metrics.get(self.name), self._before)
            self.from_evaluation = bool(trainer.collectives.broadcast(changed))

    def read(self, trainer: TrainerView, early: bool = False) -> float | None:
        """Return rank 0's value on every rank. Collective.

        Args:
            trainer: has the metrics.
            early: whether not to warn about a missing metric before the first evaluation.

        Returns:
            None if it hasn't been logged, but an evaluation may still log it.

        Raises:
            ConfigError: it hasn't been logged, though there was an evaluation. Raised on every rank.
        """
        metrics = trainer.callback_metrics if trainer.is_main else {}
        value = metrics.get(self.name)
        if value is None and self.name in POSITION:
            value = trainer.current_epoch if self.name == "epoch" else trainer.global_step
        reading: Reading = trainer.collectives.broadcast(
            Reading(None if value is None else float(value), tuple(sorted(metrics)), self.from_evaluation)
        )
        if reading.value is not None:
            self._seen = True
        elif self.strict and (self._evaluated or not early):
            self._missing(trainer, reading.logged)
        return reading.value

    def finish(self, trainer: TrainerView) -> None:
        """Raise an error at the end of a fit if the metric was needed and never logged. Every rank calls it.

        Raises:
            ConfigError: as `read`. Raised on every rank.
        """
        if self.strict and self._missed and not self._seen:
            raise ConfigError(self._message(tuple(sorted(trainer.callback_metrics))))

    def better(self, value: float, than: float | None) -> bool:
        """Return whether `value` is better than `than`. Values that aren't finite, and None, are worse than any."""
        if not math.isfinite(value):
            return False
        if than is None or not math.isfinite(than):
            return True
        return value < than if self.mode == "min" else value > than

    def order(self, value: float) -> tuple[bool, float]:
        """Return a sort key: the best value first, values that aren't finite last."""
        if not math.isfinite(value):
            return True, 0.0
        return False, value if self.mode == "min" else -value

    def _missing(self, trainer: TrainerView, logged: tuple[str, ...]) -> None:
        message = self._message(logged)
        if self._evaluated:
            raise ConfigError(message)
        # An evaluation that hasn't run yet may still log it.
        if not self._missed and trainer.is_main:
            warnings.warn(f"{message} (no evaluation has run yet)", UserWarning, stacklevel=2)
        self._missed = True

    def _message(self, logged: tuple[str, ...]) -> str:
        names = ", ".join(logged) if logged else "nothing"
        return f"{self.owner} needs {self.name!r}, which isn't logged; logged are: {names}"


def _differ(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return one != other and not (math.isnan(one) and math.isnan(other))


def check_mode(mode: Any, owner: str) -> None:
    """Refuse a mode other than "min" and "max".

    Raises:
        ConfigError: the mode is unknown.
    """
    if mode not in ("min", "max"):
        raise ConfigError(f'{owner} got mode={mode!r}; allowed are "min" and "max"')


def check_count(owner: str, name: str, value: Any, least: int) -> None:
    """Refuse anything but an integer of at least `least`.

    Raises:
        ConfigError: names the argument.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{owner} got {name}={value!r}; pass an integer of at least {least}")
