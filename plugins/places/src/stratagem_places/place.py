"""`Place`: what a plugin derives that brings up a run's nodes somewhere."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stratagem_places.request import PlaceRequest
    from stratagem_places.run_record import PlacedRun

State = Literal["waiting", "running", "finished", "failed", "stopped", "unknown"]
"""State of a run: `waiting` also for its second turn; `unknown` where the place no longer knows it."""

_EXIT_CODES_OF_STOPPED = (75, 128 + signal.SIGTERM)
_OVER = ("finished", "failed", "stopped", "unknown")


@dataclass(frozen=True)
class PlaceStatus:
    """What a place says of a run."""

    state: State
    detail: str = ""
    """In the place's words, as "PENDING (Resources)"."""
    exit_code: int | None = None
    """Exit code of the run's command, where the place knows it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of the run is going to happen there any more."""
        return self.state in _OVER


def state_of(exit_code: int) -> State:
    """Return how a run is whose command has ended."""
    if exit_code == 0:
        return "finished"
    return "stopped" if exit_code in _EXIT_CODES_OF_STOPPED else "failed"


class Place(ABC):
    """Brings up one launcher of Stratagem per node; processes within a node are the launcher's.

    A component of kind `place` names the class. Its constructor's parameters are the options of `--on-set`, checked
    against their annotations: text, numbers, truth values and lists of them, each with a default. A constructor
    refuses what can't be right anywhere by `ConfigError`, and neither connects to nor looks for anything.

    None of the methods imports torch. All run in the submitting process.
    """

    ask_every_s = 5.0
    """How often a run that is followed is asked for its status."""

    @abstractmethod
    def why_not(self) -> str | None:
        """Return a sentence that says why nothing can be submitted from here, as what is missing; None if it can."""

    @abstractmethod
    def render(self, request: PlaceRequest) -> str:
        """Return the script or manifest that `submit` would submit, exactly. Writes nothing, and works anywhere.

        Raises:
            UsageError: the request or the options can't be met here, in one sentence.
        """

    @abstractmethod
    def submit(self, request: PlaceRequest) -> Mapping[str, Any]:
        """Submit a request, whose folder is there by now, with the snapshot of the code.

        Returns:
            What `status`, `logs` and `stop` need to find the run again, as {"job_id": "12"}; becomes JSON.

        Raises:
            UsageError: the place refused it; nothing has been started then.
        """

    @abstractmethod
    def status(self, run: PlacedRun) -> PlaceStatus:
        """Ask how a run is.

        Raises:
            UsageError: the place can't be asked from here.
        """

    @abstractmethod
    def stop(self, run: PlacedRun) -> None:
        """Let a run save and end, as the place does it, and not come back; returns without waiting.

        Raises:
            UsageError: the place can't be asked from here.
        """

    def logs(self, run: PlacedRun, rank: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield what a run has printed, in chunks of any size.

        This reads the files in the run's folder: `output_dir`, and `log_dir` for one rank. A place whose nodes write
        elsewhere overrides it.

        Args:
            run: submitted to this place.
            rank: only this rank's; None for what all nodes print.
            follow: continue until the run is over.

        Raises:
            UsageError: there is nothing of this rank.
        """
        from stratagem_places.reading import run_output

        is_over = (lambda: self.status(run).is_over) if follow else None
        return run_output(run, rank, is_over, self.ask_every_s)
