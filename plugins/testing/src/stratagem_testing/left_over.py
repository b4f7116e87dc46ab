"""Detect leaks: objects, threads and open files that a process still holds after a run."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from stratagem_testing.checks import expect

_FILES = Path("/proc/self/fd")
"""Folder in which Linux lists the open files of this process."""


def count_held(**kinds: type) -> dict[str, int]:
    """Count threads, live objects, and open files if the system lists them.

    Args:
        kinds: name for the objects → their class.
    """
    gc.collect()
    # `type`, not `isinstance`: some lazy proxies create their object when their `__class__` is read.
    classes = [type(each) for each in gc.get_objects()]
    held = {name: sum(issubclass(each, kind) for each in classes) for name, kind in kinds.items()}
    held["threads"] = len(threading.enumerate())
    if _FILES.exists():
        held["open files"] = len(os.listdir(_FILES))
    return held


def expect_nothing_left(rounds: Sequence[Mapping[str, int]], what: str) -> None:
    """Expect that the last round holds no more than the second. The first round may fill caches.

    Args:
        rounds: what `count_held` returned after each round.
        what: name of a round, such as "run".
    """
    counts = {name: [held[name] for held in rounds] for name in rounds[0]}
    grown = {name: each for name, each in counts.items() if each[-1] > each[1]}
    expect(
        not grown,
        f"{' and '.join(grown)} aren't freed: after each {what} in turn, there are {grown}",
    )
