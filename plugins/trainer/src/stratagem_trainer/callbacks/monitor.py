"""`Monitor`: one logged value that decides something, read so that all ranks decide alike."""

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
"""No metric has these names: they stand for where the run is."""


@dataclass(frozen=True)
class Reading:
    """What rank 0 sees at one moment."""

    value: float | None
    """None where nothing of that name has been logged."""
    logged: tuple[str, ...]
    from_evaluation: bool


class Monitor:
    """A metric by name, and which of its values are better.

    Only rank 0's value counts: a metric that was logged without `sync_dist` differs between ranks,
    and ranks that decide differently would wait for each other for ever.

    Args:
        name: as the module logs it.
        mode: "min" or "max".
        owner: named in errors.
        strict: raise when the metric is missing, rather than leave it out.

    Raises:
        ConfigError: a name that is no text, or an unknown mode.
    """

    def __init__(self, name: str, mode: Mode, owner: str, strict: bool = True) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{owner} got monitor={name!r}; give a logged metric's name")
        check_mode(mode, owner)
        self.name = name
        self.mode = mode
        self.owner = owner
        self.strict = strict
        self.from_evaluation = False
        """Whether an evaluation has logged it: then it is up to date at an evaluation's end."""
        self._evaluated = False
        self._missed = False
        self._seen = False
        self._before: float | None = None

    def before_evaluation(self, trainer: TrainerView) -> None:
        """Note the value, to see at `after_evaluation` who logs it. Every rank calls both."""
        self._before = trainer.callback_metrics.get(self.name)

    def after_evaluation(self, trainer: TrainerView) -> None:
        """Find out whether the evaluation has changed the value. Collective."""
        self._evaluated = True
        if not self.from_evaluation:
            changed = _differ(trainer.callback_metrics.get(self.name), self._before)
            self.from_evaluation = bool(trainer.collectives.broadcast(changed))

    def read(self, trainer: TrainerView, early: bool = False) -> float | None:
        """Return rank 0's value on every rank. Collective.

        Args:
            trainer: whose metrics to read.
            early: before the first evaluation, a missing value isn't worth a word.

        Returns:
            None while it hasn't been logged and still may be: before the first evaluation.

        Raises:
            ConfigError: (on every rank) it isn't among what was logged, though there was an evaluation.
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
        """At the end of a fit: raise if the metric was asked for and never came. Every rank calls it.

        Raises:
            ConfigError: (on every rank) as `read`.
        """
        if self.strict and self._missed and not self._seen:
            raise ConfigError(self._message(tuple(sorted(trainer.callback_metrics))))

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` beats `than`; a value that isn't finite beats nothing, and any beats None."""
        if not math.isfinite(value):
            return False
        if than is None or not math.isfinite(than):
            return True
        return value < than if self.mode == "min" else value > than

    def order(self, value: float) -> tuple[bool, float]:
        """Sort key: best first, values that aren't finite last."""
        if not math.isfinite(value):
            return True, 0.0
        return False, value if self.mode == "min" else -value

    def _missing(self, trainer: TrainerView, logged: tuple[str, ...]) -> None:
        message = self._message(logged)
        if self._evaluated:
            raise ConfigError(message)
        # An evaluation that hasn't run yet may still log it.
        if not self._missed and trainer.is_main:
            warnings.warn(f"{message} (so far: nothing has been validated yet)", UserWarning, stacklevel=2)
        self._missed = True

    def _message(self, logged: tuple[str, ...]) -> str:
        names = ", ".join(logged) if logged else "nothing"
        return f"{self.owner} needs {self.name!r}, which isn't logged; logged are: {names}"


def _differ(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return one != other and not (math.isnan(one) and math.isnan(other))


def check_mode(mode: Any, owner: str) -> None:
    """Refuse anything but "min" and "max".

    Raises:
        ConfigError: something else.
    """
    if mode not in ("min", "max"):
        raise ConfigError(f'{owner} got mode={mode!r}; allowed are "min" and "max"')


def check_count(owner: str, name: str, value: Any, least: int) -> None:
    """Refuse anything but an integer of at least `least`.

    Raises:
        ConfigError: something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{owner} got {name}={value!r}; give an integer of at least {least}")
