"""Sentences about a run, for the page and the command."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem.errors import bytes_text
from stratagem_report.page.text import duration, number, percent, plural
from stratagem_report.phases import PHASES
from stratagem_report.summary import Summary, mean_device_ns

MEMORY_NAMES = ("allocated_bytes", "resident_bytes")
"""Which memory figure to show: the device's if it exists, otherwise the host's."""


def words(summary: Summary) -> list[str]:
    """Return the main facts about a run in sentences."""
    parts, wall = summary.goodput.parts, summary.goodput.wall_s
    world = len(summary.ranks)
    speed = f"{number(summary.steps_per_s)} steps/s"
    if summary.samples_per_s is not None:
        speed += f", {number(summary.samples_per_s)} samples/s over all ranks"
    rest = sorted(((s, name) for name, s in parts.items() if name != "compute" and s > 0), reverse=True)[:3]
    spent = ", ".join(f"{percent(seconds / wall)} {name}" for seconds, name in rest if wall)
    sentences = [
        f"{plural(summary.steps, 'step')} on {plural(world, 'rank')} in {duration(wall)}: {speed} while it trained. "
        f"The run {summary.outcome}.",
        f"{percent(summary.goodput.share)} of the time trained the model" + (f"; {spent}." if spent else "."),
    ]
    if (memory := memory_of(summary)) is not None:
        name, peaks = memory
        most = max(range(len(peaks)), key=lambda index: peaks[index])
        sentences.append(
            f"At most {bytes_text(peaks[most])} {name} on a rank"
            + (f" (rank {summary.ranks[most].rank})." if world > 1 else ".")
        )
    return sentences + _device_words(summary)


def warnings(summary: Summary) -> list[str]:
    """Return a sentence about each slow rank."""
    slow = {each.rank: f"{100 * (each.ratio - 1):.0f} %" for each in summary.slow}
    sentences = [
        f"rank {summary.ranks[each.rank].rank} is {slow[each.rank]} slower than the others: its own work takes "
        f"{duration(each.own_ns / 1e9)} a step, and theirs {duration(each.others_ns / 1e9)}"
        for each in summary.slow
    ]
    for event in summary.slow_events:
        if event["rank"] not in slow:
            ratio = float(str(event["ratio"]))
            sentences.append(
                f"rank {event['rank']} was {100 * (ratio - 1):.0f} % slower than the others at step "
                f"{event['at_step']}, most of it in {event['phase']}"
            )
    return sentences


def fastest(summaries: Sequence[Summary]) -> str:
    """Return a sentence that names the fastest run, by samples per second if all runs have them."""
    unit = "samples/s" if all(summary.samples_per_s is not None for summary in summaries) else "steps/s"
    speeds = [
        (summary.samples_per_s if unit == "samples/s" else None) or summary.steps_per_s
        for summary in summaries
    ]
    order = sorted(range(len(speeds)), key=lambda index: -speeds[index])
    first, rest = order[0], order[1:]
    than = ", ".join(
        f"{number(speeds[first] / speeds[index])} × {summaries[index].run.name}"
        for index in rest
        if speeds[index]
    )
    text = f"{summaries[first].run.name} trained fastest: {number(speeds[first])} {unit}"
    return f"{text}, {than}." if than else f"{text}."


def memory_of(summary: Summary) -> tuple[str, list[int]] | None:
    """Return the name of the memory figure to show, and each rank's peak; None if it is unknown."""
    for name in MEMORY_NAMES:
        if all(name in rank.peak_bytes for rank in summary.ranks):
            return name.removesuffix("_bytes"), [rank.peak_bytes[name] for rank in summary.ranks]
    return None


def _device_words(summary: Summary) -> list[str]:
    """Return how long a step takes on the devices, or that it isn't measured; empty for CPUs."""
    sentences = []
    if (took := mean_device_ns(summary)) is not None:
        order = sorted((phase for phase, ns in enumerate(took) if ns > 0), key=lambda phase: -took[phase])
        parts = ", ".join(f"{duration(took[phase] / 1e9)} {PHASES[phase]}" for phase in order)
        sentences.append(f"On the device, a step takes {duration(sum(took) / 1e9)}: {parts}.")
    untimed = [rank for rank in summary.ranks if rank.untimed is not None]
    if untimed:
        which = "" if len(untimed) == len(summary.ranks) else f" of {plural(len(untimed), 'rank')}"
        sentences.append(
            f"The phases{which} are the host's: what the device takes for each isn't measured ({untimed[0].untimed})."
        )
    return sentences
