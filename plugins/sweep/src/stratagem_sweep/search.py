"""`Searched`: a setting that a sweep varies, as `--search` has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from stratagem_cli.settings import SECTIONS, TOP_LEVEL

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LOG = "log"
_FORMS = "write NAME=LOW:HIGH, NAME=LOW:HIGH:log, NAME=LOW:HIGH:STEP or NAME=A,B,C"


@dataclass(frozen=True)
class Searched:
    """A setting and the values that it may have: `choices`, or numbers from `low` to `high`, both included."""

    key: str
    """As `--set` takes it: "model.lr"."""
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False

    @classmethod
    def parse(cls, text: str) -> Searched:
        """Read what follows `--search`. A name without a section is an argument of the module.

        Raises:
            ConfigError: it is neither a range of numbers nor a list of values.
        """
        name, equals, values = (word.strip() for word in text.partition("="))
        section, dot, rest = name.partition(".")
        if not equals or not section or (dot and not rest):
            raise _refused(text, _FORMS)
        if dot and section not in SECTIONS:
            raise _refused(text, f"{section!r} is no section; sections are {', '.join(SECTIONS)}")
        key = name if dot or name in (*SECTIONS, *TOP_LEVEL) else f"model.{name}"
        if "," in values:
            return cls(key, choices=_choices(text, values))
        low, high, step, log = _range(text, values)
        return cls(key, low=low, high=high, step=step, log=log)

    def distribution(self) -> BaseDistribution:
        """What Optuna draws from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(
                self.low, self.high, log=self.log, step=1 if self.step is None else int(self.step)
            )
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def grid(self) -> list[str | int | float]:
        """All values.

        Raises:
            ConfigError: there is no end of them.
        """
        if self.choices:
            return list(self.choices)
        step = self.step
        if step is None and isinstance(self.low, int) and not self.log:
            step = 1
        if step is None:
            raise ConfigError(
                f"--sampler grid tries all values of {self.key}, and got a range without a step: list them, as "
                f"--search {self.key}=A,B,C, or use --sampler tpe"
            )
        kind = int if isinstance(self.low, int) else float
        low, high, by = (
            Decimal(str(number)) for number in (self.low, self.high, step)
        )  # 0.1 + 2 * 0.1 is 0.3
        return [kind(low + index * by) for index in range(1 + int((high - low) / by))]


def written(value: str | int | float) -> str:
    """Return a drawn value as `--set` takes it."""
    if not isinstance(value, float):
        return str(value)
    text = repr(value)
    digits, e, exponent = text.partition("e")
    return f"{digits}.0e{exponent}" if e and "." not in digits else text  # YAML takes 1e-05 for a text


def _choices(text: str, values: str) -> tuple[str, ...]:
    choices = tuple(value.strip() for value in values.split(","))
    if "[" in values or "{" in values:
        raise _refused(text, "a choice is a number or a text, and can't be a list")
    if "" in choices or len(set(choices)) < len(choices) or len(choices) < 2:
        raise _refused(text, "give two or more values, each once, separated by commas")
    return choices


def _range(text: str, values: str) -> tuple[float, float, float | None, bool]:
    bounds = values.split(":")
    if len(bounds) not in (2, 3):
        raise _refused(text, _FORMS)
    log = bounds[2:] == [LOG]
    numbers = [_number(text, bound) for bound in (bounds[:2] if log else bounds)]
    if all(isinstance(number, int) for number in numbers):
        low, high = numbers[:2]
    else:
        numbers = [float(number) for number in numbers]
        low, high = numbers[:2]
    step = None if log or len(numbers) == 2 else numbers[2]
    if not low < high:
        raise _refused(text, f"{bounds[0]} must be less than {bounds[1]}")
    if log and low <= 0:
        raise _refused(text, "a range with :log must begin above 0")
    if step is not None and not 0 < step <= high - low:
        raise _refused(text, f"the step {bounds[2]} must be above 0, and fit into the range")
    return low, high, step, log


def _number(text: str, word: str) -> int | float:
    for kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    raise _refused(text, f"{word!r} is no number; {_FORMS}")


def _refused(text: str, why: str) -> ConfigError:
    return ConfigError(f"--search {text!r} can't be used: {why}")
