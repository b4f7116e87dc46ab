"""`PreemptionWatch`: all ranks agree whether a run must stop soon, so that it can save before it is ended."""

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
"""Signals by which schedulers announce that they will end a process."""

EXCHANGE_S = 0.5
"""Target interval between exchanges of ranks; the number of steps is estimated from the previous ones."""
NOTE = "preemption"
"""First part of the names of notes in the launch's folder."""


class Preempted(SystemExit):
    """Raised when a run that was asked to stop ends. If it isn't caught, the process exits with code 75.

    Attributes:
        reason: such as "SIGTERM" or "the time limit".
        path: path of a fit's checkpoint; "" if there is none to resume from.
        step: number of optimizer steps in the checkpoint.
        rank: rank of the process that raised it.
        predictions: on rank 0, a stopped prediction's results for the batches so far, one list per loader.
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
    """Return the names of signals from a sequence or a text such as "SIGTERM,SIGUSR1"; "" and () mean none.

    Raises:
        ConfigError: a signal isn't in `ALLOWED`.
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
    """The conditions under which a run stops."""

    signals: tuple[str, ...] = tuple(STOP_SIGNALS.split(","))
    grace_period_s: float = 30.0
    """How long a process may run after a signal; also how long before a limit the run stops."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Name of a limit, such as "the time limit" → time at which the process is ended, in seconds since the epoch."""


class PreemptionWatch:
    """Watches for signals and limits. A context manager. Outside the main thread it watches only for limits.

    A signal may reach any rank, or the launching process, which forwards it. Signal handlers that the program has set
    stay in place.

    Args:
        collectives: of all ranks.
        conditions: must be the same on all ranks.

    Attributes:
        reason: why the run must stop, once ranks have agreed that it must.
        notified_at: `time.monotonic` at which this rank was notified; None before.
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
        """Return whether the run must stop here. Call it where the run could save. Collective in some of its calls.

        A single rank checks at each call. Several ranks exchange a number about every `EXCHANGE_S`: the number of
        calls between exchanges is estimated from the duration of the previous calls. If calls become slower, ranks
        learn of a signal later.
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
        # At most double the interval, since the first steps of a run aren't typical.
        wanted = max(1, min(2 * self._interval, int(EXCHANGE_S / call_s)))
        both = torch.tensor([float(word), float(-wanted)], device=self._collectives.device)
        agreed, fewest = self._collectives.all_reduce(both, "max").tolist()
        self._until_exchange = self._interval = int(-fewest)
        self._exchanged_at = time.monotonic()
        return int(agreed)

    def _own_word(self) -> int:
        """Return this rank's reason to stop, as an index of `_reasons`; 0 for none."""
        if not self._came and self._stop_at is not None and time.time() >= self._stop_at:
            limits = self._conditions.limits
            self._came = self._reasons.index(min(limits, key=lambda name: limits[name]))
            self.notified_at = time.monotonic()
        return self._came

    def _take(self, number: int, frame: object) -> None:
        if not self._came:
            self._came, self.notified_at = self._reasons.index(signal.Signals(number).name), time.monotonic()
