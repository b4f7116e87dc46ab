"""The figures of a run's record: speed, memory, slow ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from stratagem_report.goodput import Goodput, goodput
from stratagem_report.phases import OTHER, OWN, PHASES
from stratagem_report.reading import RankRecord, Row, RunRecord
from stratagem_report.slowness import Slow, slow_ranks

WARM_UP = 2
"""Number of steps at an attempt's beginning that aren't typical."""


@dataclass(frozen=True)
class RankSummary:
    """One rank's typical step, and its memory."""

    rank: int
    host: str
    device: str
    step_ns: tuple[float, ...]
    """Mean duration of each phase of a step."""
    own_ns: float
    """Median duration of a step without waiting."""
    peak_bytes: dict[str, int]
    """Maximum bytes in use, by name."""
    device_ns: tuple[float, ...] | None = None
    """The device's time for each phase of a step: means over sampled steps. None if no step was sampled."""
    device_samples: int = 0
    """Number of sampled steps."""
    untimed: str | None = None
    """Why the device wasn't measured; None if it was, and for the CPU."""


@dataclass(frozen=True)
class Summary:
    """A run in figures."""

    run: RunRecord
    goodput: Goodput
    steps: int
    """Number of all steps, including repeated ones."""
    steps_per_s: float
    """Speed of the training itself, without start, validation, checkpoints and loading."""
    samples_per_s: float | None
    """Speed over all ranks; None if the size of batches is unknown."""
    ranks: list[RankSummary]
    """Ranks of the last attempt."""
    slow: list[Slow]
    """Slow ranks, by the median over the last attempt's steps."""
    slow_events: list[dict[str, object]]
    """The records of slow ranks during training."""
    outcome: str


def summarize(run: RunRecord) -> Summary:
    """Return a run's figures."""
    last = run.attempts[-1]
    mains = [ranks[0] for ranks in run.attempts]
    training_ns = sum(sum(row.ns[: OTHER + 1]) for rank in mains for row in rank.rows if row.steps)
    steps = sum(rank.steps for rank in mains)
    samples = sum(row.samples for ranks in run.attempts for rank in ranks for row in rank.rows) * sharing(
        last
    )
    ranks = [_of_rank(rank) for rank in last]
    slow_events = [event for main in mains for event in main.events if event["event"] == "slow"]
    return Summary(
        run=run,
        goodput=goodput(run),
        steps=steps,
        steps_per_s=steps / (training_ns / 1e9) if training_ns else 0.0,
        samples_per_s=samples / (training_ns / 1e9) if samples and training_ns else None,
        ranks=ranks,
        slow=slow_ranks([rank.own_ns for rank in ranks]),
        slow_events=slow_events,
        outcome=_outcome(run),
    )


def sharing(ranks: Sequence[RankRecord]) -> float:
    """Return the share of read samples that counts: ranks that share a copy of the model read the same ones."""
    header = ranks[0].header
    return float(header.get("data_ranks", 1)) / float(header.get("world_size", 1) or 1)


def typical_rows(rank: RankRecord) -> list[Row]:
    """Return the rows with steps, without the first ones if there are others."""
    rows = [row for row in rank.rows if row.steps]
    return rows[WARM_UP:] or rows


def _of_rank(rank: RankRecord) -> RankSummary:
    rows = typical_rows(rank)
    steps = sum(row.steps for row in rows) or 1
    peak: dict[str, int] = {}
    for _, memory in rank.memory:
        for name, size in memory.items():
            peak[name] = max(peak.get(name, 0), size)
    sampled = [step.ns for step in rank.device_steps]
    device = str(rank.header.get("device", ""))
    return RankSummary(
        rank=rank.rank,
        host=str(rank.header.get("host", "")),
        device=device,
        step_ns=tuple(sum(row.ns[phase] for row in rows) / steps for phase in range(OTHER + 1)),
        own_ns=median([sum(row.ns[phase] for phase in OWN) / row.steps for row in rows] or [0.0]),
        peak_bytes=peak,
        device_ns=tuple(fmean(ns[phase] for ns in sampled) for phase in range(OTHER + 1))
        if sampled
        else None,
        device_samples=len(sampled),
        untimed=_why_untimed(rank, device),
    )


def _why_untimed(rank: RankRecord, device: str) -> str | None:
    if rank.device_steps or device.partition(":")[0] in ("", "cpu"):
        return None
    reasons = [str(event["why"]) for event in rank.events if event["event"] == "untimed"]
    return reasons[0] if reasons else "no step was sampled"


def _outcome(run: RunRecord) -> str:
    ends = {rank.end for rank in run.attempts[-1]}
    restarts = len(run.attempts) - 1
    again = f" after {restarts} restart{'s' * (restarts != 1)}" if restarts else ""
    if ends == {"done"}:
        return f"ended well{again}"
    if "failed" in ends:
        return f"ended with an error{again}"
    if "stopped" in ends:
        return f"was asked to stop, and saved{again}"
    return f"was killed, or still runs{again}"


@dataclass(frozen=True)
class Buckets:
    """A run's last attempt in equal spans of time."""

    span_s: float
    steps_per_s: list[float]
    samples_per_s: list[float]
    phase_shares: list[tuple[float, ...]]
    """Each phase's share of all ranks' time. Shares add up to 1, or to 0 if nothing is known."""


def in_buckets(ranks: Sequence[RankRecord], count: int = 80) -> Buckets:
    """Spread rows over spans of time. A step counts in the span of its middle; its phases are divided among spans."""
    wall_ns = max((rank.wall_ns for rank in ranks), default=0) or 1
    count = max(1, min(count, max(len(rank.rows) for rank in ranks) // 10))
    span = wall_ns / count
    steps, samples = [0.0] * count, [0.0] * count
    phases = [[0.0] * len(PHASES) for _ in range(count)]
    for rank in ranks:
        for row in rank.rows:
            at = max(0, row.end_ns - row.total_ns)  # in a damaged file a row may be longer than its run
            middle = min(int((at + row.end_ns) / 2 / span), count - 1)
            steps[middle] += row.steps / len(ranks)
            samples[middle] += row.samples
            for phase, ns in enumerate(row.ns):
                for index in range(min(int(at / span), count - 1), min(int((at + ns) / span), count - 1) + 1):
                    inside = min(at + ns, span * (index + 1)) - max(at, span * index)
                    phases[index][phase] += max(0.0, inside)
                at += ns
    share = sharing(ranks)
    return Buckets(
        span / 1e9,
        [value / (span / 1e9) for value in steps],
        [value * share / (span / 1e9) for value in samples],
        [tuple(ns / (sum(each) or 1.0) for ns in each) for each in phases],
    )


def mean_device_ns(summary: Summary) -> tuple[float, ...] | None:
    """Return a step's phases on the device: means over the ranks whose device is measured; None if there are none."""
    measured = [rank.device_ns for rank in summary.ranks if rank.device_ns is not None]
    return tuple(fmean(column) for column in zip(*measured)) if measured else None


def mean_step_ns(summary: Summary) -> tuple[float, ...]:
    """Return a step's phases: means over the ranks."""
    return tuple(fmean(column) for column in zip(*(rank.step_ns for rank in summary.ranks)))
