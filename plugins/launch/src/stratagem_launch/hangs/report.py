"""The report of a hang: one sentence, and one file with all ranks' stacks and collectives."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratagem_launch.hangs.evidence import Evidence, Frame, read_collectives, read_stacks
from stratagem_launch.hangs.files import Beat
from stratagem_launch.hangs.verdict import Verdict, judge

_NEWEST = 8
"""Number of newest collectives per rank that the file lists."""


def report_hang(beats: Sequence[Beat], timeout_s: float, seen: Mapping[int, Evidence]) -> Verdict:
    """Diagnose a hang from the ranks' files, and write the report.

    Args:
        beats: heartbeats of the ranks.
        timeout_s: the heartbeat timeout.
        seen: evidence that the watcher has about the ranks, by rank.
    """
    evidence = []
    for beat in beats:
        known = seen.get(beat.rank, Evidence(beat.rank, beat.host, beat.count(), timeout_s))
        stacks = read_stacks(beat.files.stacks)
        evidence.append(
            replace(
                known,
                stack=known.stack or (stacks[0] if stacks else ()),
                collectives=read_collectives(beat.files.collectives),
            )
        )
    verdict = judge(evidence, timeout_s)
    try:
        path = _write(beats, evidence, verdict)
    except OSError as error:
        return replace(
            verdict, sentence=f"{verdict.sentence} (the report can't be written: {error.strerror})"
        )
    return replace(verdict, sentence=f"{verdict.sentence}; all stacks are in {path}")


def _write(beats: Sequence[Beat], evidence: Sequence[Evidence], verdict: Verdict) -> str:
    folder = beats[0].report_dir
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"hang-{time.strftime('%Y%m%d-%H%M%S')}.txt")
    lines = [verdict.sentence, ""]
    for beat, each in zip(beats, evidence):
        lines.append(
            f"rank {each.rank} on {each.host}, process {beat.files.pid}, {each.beats} beats, at {each.place}"
        )
        lines += _stack("main thread", each.stack) + _stack("a worker of the data loader", each.loader_stack)
        lines.append("  newest collectives")
        for call in each.collectives[-_NEWEST:]:
            lines.append(f"    {call}, {'waiting' if call.is_waiting else 'done'}")
        with open(beat.files.stacks, encoding="utf-8", errors="replace") as file:
            lines += [
                "  all threads, as faulthandler wrote them",
                *(f"    {line.rstrip()}" for line in file),
                "",
            ]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return path


def _stack(name: str, stack: Sequence[Frame]) -> list[str]:
    return [f"  {name}, innermost first", *(f"    {frame}" for frame in stack)] if stack else []
