"""Where a run's record is, and how it is written.

A run's folder has `record/attempt-000/rank-00000.jsonl`, an attempt for each time that its processes were started
and a file for each rank. Each line is a JSON object:

- the first one, the header: `format`, `attempt`, `rank`, `began` (seconds since 1970), `phases` (their names), and
  what the extension says of the rank;
- `rows`: each of some steps: how many, when the last one ended (nanoseconds since `began`), samples that this rank
  read, and nanoseconds by phase, which add up to the time since the row before;
- `device`, where the device is asynchronous: each of some sampled steps: which step of this attempt, counted from 1,
  and the device's nanoseconds by phase, which add up to its time for that step;
- `memory`: bytes by name, `at` nanoseconds since `began`;
- `event`, after `step` steps of this attempt: "saved" or "loaded", with the `path` of a checkpoint; or, of rank 0,
  "slow", with the `rank` that was, `at_step`, its `ratio` to the others, and the `phase` with most of the difference;
  or "untimed", with `why` the device's times aren't measured from then on;
- `end`: "done", "stopped" where the run was asked to stop and has saved, or "failed". A killed process writes none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

FORMAT = 1
"""Version of the record; a reader refuses others."""
FOLDER = "record"


def record_path(run_dir: str, attempt: int, rank: int) -> str:
    """Where a rank writes."""
    return os.path.join(run_dir, FOLDER, f"attempt-{attempt:03}", f"rank-{rank:05}.jsonl")


def next_attempt(run_dir: str) -> int:
    """The number of an attempt that begins now; call it on one rank."""
    return max((attempt for attempt, _ in attempt_folders(run_dir)), default=-1) + 1


def attempt_folders(run_dir: str) -> Iterator[tuple[int, str]]:
    """Yield (number, path) of each attempt, in order."""
    folder = os.path.join(run_dir, FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [(int(match[1]), name) for name in names if (match := re.fullmatch(r"attempt-(\d+)", name))]
    for attempt, name in sorted(found):
        yield attempt, os.path.join(folder, name)
