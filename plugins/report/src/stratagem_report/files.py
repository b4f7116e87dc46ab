"""Where a run's record is, and its format.

A run's folder has files `record/attempt-000/rank-00000.jsonl`: an attempt for each start of its processes, and a file
for each rank. Each line is a JSON object:

- the first line is the header: `format`, `attempt`, `rank`, `began` (seconds since 1970), `phases` (their names), and
    what the extension says about the rank;
- `rows`: a list of rows of steps. A row has the number of its steps, the time at which the last one ended
(nanoseconds
    since `began`), the number of samples that this rank read, and nanoseconds by phase, which add up to the time
    since the row before;
- `device`, for asynchronous devices: a list of sampled steps. Each has the number of the step in this attempt,
counted
    from 1, and the device's nanoseconds by phase, which add up to its time for the step;
- `memory`: bytes by name, `at` nanoseconds since `began`;
- `event`, after `step` steps of this attempt: "saved" or "loaded", with the `path` of a checkpoint; "slow" (on rank
0),
    with the slow `rank`, `at_step`, its `ratio` to the others, and the `phase` with the largest difference; or
    "untimed", with the reason `why` the device isn't measured from then on;
- `end`: "done", "stopped" if the run was asked to stop and has saved, or "failed". A killed process writes no `end`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

FORMAT = 1
"""Version of the format. A reader refuses others."""
FOLDER = "record"


def record_path(run_dir: str, attempt: int, rank: int) -> str:
    """Return the path of a rank's file."""
    return os.path.join(run_dir, FOLDER, f"attempt-{attempt:03}", f"rank-{rank:05}.jsonl")


def next_attempt(run_dir: str) -> int:
    """Return the number of an attempt that starts now. Call it on one rank only."""
    return max((attempt for attempt, _ in attempt_folders(run_dir)), default=-1) + 1


def attempt_folders(run_dir: str) -> Iterator[tuple[int, str]]:
    """Yield (number, path) of each attempt, in order."""
    folder = os.path.join(run_dir, FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [(int(match[1]), name) for name in names if (match := re.fullmatch(r"attempt-(\d+)", name))]
    for attempt, name in sorted(found):
        yield attempt, os.path.join(folder, name)
