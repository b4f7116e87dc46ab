"""`PreemptionWatch`: whether a run is to stop soon, on which all ranks agree, so that it can save before it ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError, short
from stratagem_launch.restart_states import LAUNCH_VARIABLE

if TYPE_CHECKING:
    from typing_extensions import Self

    from stratagem import Collectives

EXIT_CODE = 75
"""Exit code of a run that was asked to stop and may be restarted: EX_TEMPFAIL of sysexits.h, "try again later"."""

STOP_SIGNALS = "SIGTERM,SIGUSR1,SIGUSR2"
"""Signals that a run obeys by default."""
ALLOWED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
"""Signals by which schedulers say that a process is about to be ended."""

EXCHANGE_S = 0.5
"""How often ranks ask each other, estimated from the duration of previous steps."""
NOTE = "preemption"
"""First part of the names of notes in the launch's folder."""


class Preempted(SystemExit):
    """A run that was asked to stop and ends, with what it could save; uncaught, the process exits with 75.

    Attributes:
        reason: as "SIGTERM", or "the time limit".
        path: of the checkpoint of a fit; "" where nothing resumes from one.
        step: optimizer steps in it.
        rank: of the process that raised it.
        predictions: of a prediction, those of the first batches, in a list for each loader; on rank 0.
    """

    def __init__(
        self, reason: str, path: str = "", step: int = 0, rank: int = 0, predictions: list[Any] | None = None
    ) -> None:
        super().__init__(EXIT_CODE)
        self.reason, self.path, self.step, self.rank = reason, path, step, rank
        self.predictions = predictions

    def __str__(self) -> str:
        saved = f", saved {self.path} at step {self.step}" if self.path else ""
        return f"stopped by {self.reason}{saved}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.path, self.step, self.rank, self.predictions)


def check_stop_signals(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of signals, given as a list, or as "SIGTERM,SIGUSR1"; "" and () are none.

    Raises:
        ConfigError: one isn't among `ALLOWED`.
    """
    given = names.split(",") if isinstance(names, str) else names
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"stop_signals={short(names)} must be a list of signals, from {', '.join(ALLOWED)}")
    stripped = tuple(name.strip() if isinstance(name, str) else name for name in given if name != "")
    for name in stripped:
        if name not in ALLOWED:
            raise ConfigError(
                f"stop_signals has {short(name)}; allowed are {', '.join(ALLOWED)}, or '' for no signals"
            )
    return stripped


@dataclass(frozen=True)
class StopConditions:
    """What makes a run stop."""

    signals: tuple[str, ...] = tuple(STOP_SIGNALS.split(","))
    grace_period_s: float = 30.0
    """How long a process may still run after a signal, and how long before a limit the run stops."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Name of a limit, such as "the time limit" → when the process is ended, in seconds since the epoch."""


class PreemptionWatch:
    """Watches for signals and limits from the main thread, as a context; elsewhere for limits alone.

    A signal may reach any rank, or the launching process, which passes it on. Handlers that the program has set
    itself stay.

    Args:
        collectives: of all ranks.
        conditions: the same on all ranks.

    Attributes:
        reason: why the run is to stop, once ranks agree that it is.
        notified_at: when this rank knew, by `time.monotonic`; None before.
    """

    def __init__(self, collectives: Collectives, conditions: StopConditions) -> None:
        self.reason: str | None = None
        self.notified_at: float | None = None
        self._collectives, self._conditions = collectives, conditions
        self._numbers = [int(getattr(signal, name)) for name in conditions.signals if hasattr(signal, name)]
        names = [signal.Signals(number).name for number in self._numbers]
        self._reasons = ["", *names, *conditions.limits]
        self._came = 0
        ends = conditions.limits.values()
        self._stop_at = min(ends) - conditions.grace_period_s if ends else None
        self._before: dict[int, Any] = {}
        self._note: str | None = None
        self._is_alone = collectives.world_size == 1
        self._until_exchange, self._interval = 1, 1
        self._exchanged_at = time.monotonic()

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in self._numbers:
            if signal.getsignal(number) == signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._take)
        folder = os.environ.get(LAUNCH_VARIABLE)
        if folder is not None and self._before:
            name = f"{NOTE}.{self._collectives.rank}.{os.getpid()}"
            content = {"signals": list(self._before), "grace_period_s": self._conditions.grace_period_s}
            self._note = os.path.join(folder, name)
            with open(f"{self._note}.unfinished", "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(f"{self._note}.unfinished", self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._note is not None and os.path.exists(self._note):
            os.unlink(self._note)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def is_due(self) -> bool:
        """Whether the run is to stop here; call it where it could save. Collective every so many calls.

        One rank alone looks at each call. Several exchange a number each half second, if calls continue to take as
        long as those before; where they take longer, ranks learn of a signal as many calls later.
        """
        if self._is_alone:
            if not self._came and self._stop_at is None:
                return False
            word = self._own_word()
        else:
            self._until_exchange -= 1
            if self._until_exchange > 0:
                return False
            word = self._exchange(self._own_word())
        if word:
            self.reason = self._reasons[word]
        return bool(word)

    def _exchange(self, word: int) -> int:
        import torch

        now = time.monotonic()
        call_s = max((now - self._exchanged_at) / self._interval, 1e-9)
        # Twice as many at most: the first steps of a run aren't like the others.
        wanted = max(1, min(2 * self._interval, int(EXCHANGE_S / call_s)))
        both = torch.tensor([float(word), float(-wanted)], device=self._collectives.device)
        agreed, fewest = self._collectives.all_reduce(both, "max").tolist()
        self._until_exchange = self._interval = int(-fewest)
        self._exchanged_at = time.monotonic()
        return int(agreed)

    def _own_word(self) -> int:
        """What this rank knows: an index of `_reasons`, 0 for nothing."""
        if not self._came and self._stop_at is not None and time.time() >= self._stop_at:
            limits = self._conditions.limits
            self._came = self._reasons.index(min(limits, key=lambda name: limits[name]))
            self.notified_at = time.monotonic()
        return self._came

    def _take(self, number: int, frame: object) -> None:
        if not self._came:
            self._came, self.notified_at = self._reasons.index(signal.Signals(number).name), time.monotonic()
