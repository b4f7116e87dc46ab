"""Advice from the measurements: each rule looks at one figure, and says what to change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stratagem_report.page.text import duration, percent
from stratagem_report.phases import COMMUNICATION, DATA, OTHER
from stratagem_report.summary import Summary, mean_step_ns

LEAST_STEPS = 10
"""With fewer steps, their means aren't typical."""
START, SAVES, VALIDATION, LOST = 0.3, 0.1, 0.3, 0.1
"""Shares of the wall time above which there is advice."""
WAITING, WAITING_FOR_RANKS, BETWEEN_STEPS = 0.15, 0.25, 0.2
"""Shares of a step above which there is advice."""


@dataclass(frozen=True)
class Advice:
    """A sentence that says what was measured and what to change."""

    text: str
    page: str
    """Page of the documentation, relative to `docs/`, such as "guides/data.md"."""


def advice(summary: Summary) -> list[Advice]:
    """Return what to change, in the order of `RULES`; empty if nothing stands out."""
    return [said for rule in RULES if (said := rule(summary)) is not None]


def start_and_end(summary: Summary) -> Advice | None:
    """Starting and ending took a large part of the run's time."""
    share, seconds = _part(summary, "start and end")
    if share < START:
        return None
    return Advice(
        f"{percent(share)} of the time was start and end: {duration(seconds)}, however long the run trains. Judge "
        "the speed by steps/s, or train longer.",
        "guides/report.md",
    )


def waits_for_data(summary: Summary) -> Advice | None:
    """The steps of a rank wait for their batches."""
    if summary.steps < LEAST_STEPS:
        return None
    ranks = [rank for rank in summary.ranks if sum(rank.step_ns)]
    if not ranks:
        return None
    rank = max(ranks, key=lambda each: each.step_ns[DATA] / sum(each.step_ns))
    data, step = rank.step_ns[DATA], sum(rank.step_ns)
    if data / step < WAITING:
        return None
    workers = math.ceil(data / max(step - data, step / 16)) + 1
    return Advice(
        f"Rank {rank.rank} waits {percent(data / step)} of each step for data ({duration(data / 1e9)} of "
        f"{duration(step / 1e9)}). Without workers, a batch is read while nothing trains: give the DataLoader "
        f"num_workers={workers}. With workers, give it more, or read less for each sample.",
        "guides/data.md",
    )


def saves_block(summary: Summary) -> Advice | None:
    """Training stops while a checkpoint is written."""
    share, seconds = _part(summary, "checkpoints")
    if share < SAVES:
        return None
    return Advice(
        f"Saves block {percent(share)} of the time ({duration(seconds)}). Let another process write them: "
        "--set checkpoint.async=true. Or save less often.",
        "checkpoints.md#asynchronous-saves",
    )


def validation(summary: Summary) -> Advice | None:
    """Validation takes a large part of the time."""
    share, seconds = _part(summary, "validation")
    if share < VALIDATION:
        return None
    return Advice(
        f"Validation takes {percent(share)} of the time ({duration(seconds)}). Validate less often "
        "(--set trainer.check_val_every_n_epoch=5), or on fewer batches (--set trainer.limit_val_batches=0.2).",
        "guides/trainer-arguments.md",
    )


def waits_for_ranks(summary: Summary) -> Advice | None:
    """Steps wait for other ranks: for a slow rank, or for communication."""
    step = mean_step_ns(summary)
    if summary.steps < LEAST_STEPS or not sum(step) or step[COMMUNICATION] / sum(step) < WAITING_FOR_RANKS:
        return None
    share = f"Ranks wait {percent(step[COMMUNICATION] / sum(step))} of each step for each other"
    if summary.slow:
        slowest = max(summary.slow, key=lambda each: each.ratio)
        return Advice(
            f"{share}, and rank {summary.ranks[slowest.rank].rank} is the slow one: look at its machine and its data "
            "first.",
            "guides/report.md#slow-ranks",
        )
    half = "reduce gradients in 16 bits (--strategy ddp_bf16), or " if summary.run.strategy == "ddp" else ""
    return Advice(
        f"{share}. Send less: {half}accumulate more batches for each step "
        "(--set trainer.accumulate_grad_batches=4).",
        "strategies/ddp.md" if half else "strategies/index.md",
    )


def between_steps(summary: Summary) -> Advice | None:
    """Much of a step is between its phases: in callbacks, loggers or the user's code."""
    step = mean_step_ns(summary)
    if summary.steps < LEAST_STEPS or not sum(step) or step[OTHER] / sum(step) < BETWEEN_STEPS:
        return None
    return Advice(
        f"{percent(step[OTHER] / sum(step))} of each step ({duration(step[OTHER] / 1e9)}) is none of data, forward, "
        "backward or optimizer: callbacks, loggers or your own code between steps. Log less often "
        "(--set trainer.log_every_n_steps=50); a profiler shows the rest.",
        "guides/profiling.md",
    )


def lost_work(summary: Summary) -> Advice | None:
    """Steps that were repeated after restarts cost more time than frequent saves would."""
    share, seconds = _part(summary, "lost work")
    if share < LOST:
        return None
    return Advice(
        f"{percent(share)} of the time ({duration(seconds)}) was work that a restart did again. Save more often, or "
        "keep checkpoints in memory (--checkpoint-memory).",
        "guides/restarts.md",
    )


RULES: tuple[Callable[[Summary], Advice | None], ...] = (
    start_and_end,
    waits_for_data,
    saves_block,
    validation,
    waits_for_ranks,
    between_steps,
    lost_work,
)
"""Rules, in the order in which advice is given."""


def _part(summary: Summary, name: str) -> tuple[float, float]:
    """Return a part's share of the wall time, and its seconds."""
    seconds = summary.goodput.parts[name]
    return (seconds / summary.goodput.wall_s if summary.goodput.wall_s else 0.0), seconds
