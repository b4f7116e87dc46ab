"""`Report`: what a replay found."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stratagem_capsule.opening import KeptStep


@dataclass
class RankReport:
    """What one rank of a replay found in the step."""

    rank: int
    losses: list[float | None] = field(default_factory=list)
    """Of the step's micro-batches, in order."""
    gradient_norms: list[float] = field(default_factory=list)
    """For each optimizer that was stepped, before clipping."""
    non_finite_at_start: str = ""
    """The first parameter that wasn't finite before the step."""
    non_finite_module: str | None = None
    """The first module whose output wasn't."""
    its_input_is_finite: bool = True
    non_finite_gradients: list[str] = field(default_factory=list)
    """Names of parameters."""
    error: str = ""
    """What was raised."""
    time: float = 0.0
    """When, in seconds since the epoch: an error of one rank may end others."""
    traceback: str = ""
    has_all_ranks: bool = False
    """Whether this one process has run the micro-batches of all ranks."""
    is_done: bool = False
    """Whether the step came to its end."""

    def write(self, folder: Path) -> None:
        """Write it for the command, all of it or nothing: another rank's error may end this process meanwhile."""
        draft = folder / f"rank-{self.rank}.draft"
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(folder / f"rank-{self.rank}.json")


@dataclass(frozen=True)
class Report:
    """What a replay found, on all ranks.

    Attributes:
        step: the optimizer step.
        start: what it started from.
        is_same_run: whether it had the strategy and the processes of the run, so that it is to be equal to the bit.
        losses: of the micro-batches, in the order of the ranks of the run.
        run_losses: the same in the run; None where it has none.
        ranks: what each rank found.
        events: why the step was kept.
    """

    step: int
    start: str
    is_same_run: bool
    losses: Sequence[float | None]
    run_losses: Sequence[float | None]
    ranks: Sequence[RankReport]
    events: Sequence[Any]

    @property
    def errors(self) -> list[RankReport]:
        """Ranks that raised, the first one first."""
        return sorted((each for each in self.ranks if each.error), key=lambda each: each.time)

    @property
    def is_repeated(self) -> bool:
        """Whether it raised as in the run, and losses are equal: to the bit in the same run, or within rounding."""
        if bool(self.errors) != any(event["reason"] == "raised" for event in self.events):
            return False
        pairs = [(own, then) for own, then in zip(self.losses, self.run_losses) if None not in (own, then)]
        if self.is_same_run:
            return all(_bits(own) == _bits(then) for own, then in pairs)
        return all(
            _bits(own) == _bits(then) or math.isclose(own or 0.0, then or 0.0, rel_tol=1e-4, abs_tol=1e-6)
            for own, then in pairs
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON's types."""
        return {**asdict(self), "is_repeated": self.is_repeated}

    def text(self) -> str:
        """Return the report for a terminal."""
        lines = [f"step {self.step}, from {self.start}"]
        lines += [f"  {'kept':<16}{text}" for text in _event_texts(self.events)]
        lines.append(f"  {'loss':<16}{self._loss_text()}")
        norms = next((each.gradient_norms for each in self.ranks if each.gradient_norms), [])
        if norms:
            lines.append(f"  {'gradient norm':<16}{', '.join(f'{norm:.6g}' for norm in norms)}")
        lines += [
            f"  {'not finite':<16}{line}"
            for each in self.ranks
            for line in _non_finite(each, len(self.ranks))
        ]
        if self.errors:
            first = self.errors[0]
            lines.append(f"  {'raised':<16}{first.error.splitlines()[0]}{_on(first.rank, len(self.losses))}")
            lines += ["", first.traceback.rstrip()]
        elif not any(each.is_done for each in self.ranks):
            lines.append(f"  {'ended':<16}before the step's end, as its further batches weren't kept")
        return "\n".join(lines)

    def _loss_text(self) -> str:
        known = [loss for loss in self.losses if loss is not None]
        if not known:
            return "none: the step raised before it"
        text = f"{sum(known) / len(known):.8g}"
        if len(known) > 1:
            text += f" (mean of {len(known)} micro-batches)"
        if not any(then is not None for then in self.run_losses):
            return text
        if not self.is_repeated:
            then = [loss for loss in self.run_losses if loss is not None]
            return f"{text}; it was {sum(then) / len(then):.8g} in the run, so that the step isn't repeated"
        return f"{text}; {'equal to the bit' if self.is_same_run else 'equal within rounding'} in the run"


def read_reports(folder: Path, kept: KeptStep, *, is_same_run: bool, start: str) -> Report:
    """Put together what ranks wrote."""
    ranks = [RankReport(**json.loads(path.read_text())) for path in folder.glob("rank-*.json")]
    ranks.sort(key=lambda each: each.rank)
    if not any(each.has_all_ranks for each in ranks):
        by_rank = {each.rank: each.losses for each in ranks}
        losses = [
            loss for rank in range(len(kept.losses)) for loss in _filled(by_rank.get(rank), kept.losses[rank])
        ]
        then = [loss for own in kept.losses for loss in own]
    else:
        # One process has run the ranks' micro-batches in turns.
        losses = list(ranks[0].losses) if ranks else []
        first = [kept.segment.data_ranks.index(part) for part in sorted(set(kept.segment.data_ranks))]
        longest = max((len(kept.losses[rank]) for rank in first), default=0)
        then = [kept.losses[rank][i] for i in range(longest) for rank in first if i < len(kept.losses[rank])]
    return Report(
        kept.step, start, is_same_run, losses, then, ranks, [asdict(event) for event in kept.events]
    )


def _filled(own: list[float | None] | None, then: Sequence[float | None]) -> list[float | None]:
    found = list(own or ())
    return found[: len(then)] + [None] * (len(then) - len(found))


def _bits(value: float | None) -> bytes:
    number = float("nan") if value is None or math.isnan(value) else value
    return struct.pack("d", number)


def _non_finite(report: RankReport, world_size: int) -> list[str]:
    on, lines = _on(report.rank, world_size), []
    if report.non_finite_at_start:
        lines.append(
            f"parameter {report.non_finite_at_start!r} before the step: an earlier step made it so{on}"
        )
    if report.non_finite_module is not None:
        inputs = "of finite inputs" if report.its_input_is_finite else "whose inputs aren't either"
        lines.append(f"output of module {report.non_finite_module}, the first, {inputs}{on}")
    is_finite = all(math.isfinite(loss) for loss in report.losses if loss is not None)
    if report.non_finite_module is None and not is_finite:
        lines.append(
            f"the loss, and no module's output: what `training_step` does after them makes it so{on}"
        )
    if report.non_finite_gradients:
        count = len(report.non_finite_gradients)
        lines.append(f"gradients of {count} parameters, first {report.non_finite_gradients[0]!r}{on}")
    return lines


def _event_texts(events: Sequence[dict[str, Any]]) -> list[str]:
    """Why the step was kept: of errors the first, which may have ended other ranks."""
    texts = []
    raised = [event for event in events if event["reason"] == "raised"]
    if raised:
        texts.append(f"it raised on rank {raised[0]['rank']}: {raised[0]['text'].splitlines()[0]}")
    by_text: dict[str, list[str]] = {}
    for event in events:
        if event["reason"] == "non-finite":
            by_text.setdefault(event["text"], []).append(str(event["rank"]))
    texts += [f"{text}, on rank {', '.join(sorted(ranks))}" for text, ranks in by_text.items()]
    return texts + ["as chosen" for event in events if event["reason"] == "chosen"]


def _on(rank: int, world_size: int) -> str:
    return f", on rank {rank}" if world_size > 1 else ""
