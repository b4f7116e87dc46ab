"""`Session`: makes the runs that questions need, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stratagem_testing.workers import RankError, Workers, shared_workers

from stratagem.errors import UsageError
from stratagem_verify import runs
from stratagem_verify.compare import LEAST
from stratagem_verify.observed import Seen
from stratagem_verify.plan import Plan
from stratagem_verify.state import JoinError

Verdict = Literal["right", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """The answer to one question."""

    question: str
    """Name of the question, such as "loss"."""
    verdict: Verdict
    """"note": nothing is wrong, but something differs by definition, or wasn't compared."""
    text: str
    """What was compared; or what is wrong and what to do."""


class NotRepeatedError(Exception):
    """One process can't repeat the ranks' training. The message says why."""


class Session:
    """All runs of one verification.

    Args:
        plan: what is verified.
        tell: called with the name of each run, before it.
    """

    def __init__(self, plan: Plan, tell: Callable[[str], None] | None = None) -> None:
        self.plan, self._tell = plan, tell or (lambda name: None)
        purpose = f"verify {plan.subject.name} on {plan.subject.world_size}"
        self._ranks = shared_workers(purpose if plan.subject.own_processes else "verify")
        self._alone = shared_workers("verify in one process")
        self._repeated: dict[runs.Repetition, Seen | NotRepeatedError] = {}
        self._again: list[Seen] | None = None
        self.form: runs.Form | None = None
        """The form in which one process has the ranks' losses; None if it has them in none."""
        self.quiet = False
        """Whether it has them only in evaluation mode."""
        self.longest: tuple[str, int] = ("train", plan.steps)
        """Name and optimizer steps of the longest run under the strategy."""

    @property
    def tolerance(self) -> float:
        """Allowed difference between losses, relative to the largest one."""
        return max(LEAST, self.plan.subject.tolerance(self.plan.precision))

    def under(self, what: str, function: Callable[..., Seen], *args: Any) -> list[Seen]:
        """Run `function(plan, *args)` in every rank of the strategy.

        Raises:
            RankError: a rank failed.
        """
        return self._run(self._ranks, self.plan.subject.processes(), what, function, *args)

    def alone(self, what: str, function: Callable[..., Seen], *args: Any) -> Seen:
        """Run `function(plan, *args)` in one process.

        Raises:
            RankError: it failed.
        """
        return self._run(self._alone, 1, what, function, *args)[0]

    def again(self) -> list[Seen]:
        """Return the results of a second run with the same start, in new processes."""
        if self._again is None:
            self.fresh()
            self._again = self.under("training once more", runs.capture, "again")
        return self._again

    def fresh(self) -> None:
        """Start new processes for the next run under the strategy."""
        self._ranks.close()

    def repeated(self, how: runs.Repetition) -> Seen:
        """Return the results of one process on the ranks' batches.

        Raises:
            NotRepeatedError: one process can't repeat the run.
        """
        if how not in self._repeated:
            self._repeated[how] = self._repeat(how)
        found = self._repeated[how]
        if isinstance(found, NotRepeatedError):
            raise found
        return found

    def _repeat(self, how: runs.Repetition) -> Seen | NotRepeatedError:
        try:
            return self.alone(f"{how.source}: {how.form} in one process", runs.repeat, how)
        except RankError as error:
            if isinstance(error.error, JoinError):
                return NotRepeatedError(str(error.error))
            return NotRepeatedError(f"in one process the step fails: {reason(error)}")

    def _run(
        self, workers: Workers, count: int, what: str, function: Callable[..., Seen], *args: Any
    ) -> list[Seen]:
        self._tell(what)
        timeout_s = self.plan.subject.timeout_s
        found: list[Seen] = workers.run(count, function, self.plan, *args, timeout_s=timeout_s)
        return found


def reason(error: RankError) -> str:
    """Return why a rank failed, in one line."""
    if error.error is not None:
        name = "" if isinstance(error.error, UsageError) else f"{type(error.error).__name__}: "
        return name + " ".join(str(error.error).split())
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else "unknown"


def data_ranks(ranks: Sequence[Seen]) -> int:
    """Return the number of ranks that share the data."""
    return len({seen.data_rank for seen in ranks})
