"""Remember the checks that failed for a component, for `stratagem conformance --failed`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stratagem_testing.outcome import Outcome

Pair = tuple[str, int]
"""Name of a check, and number of its processes."""


def _file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(cache).expanduser() / "stratagem" / "conformance-failed.json"


def _kept() -> dict[str, list[Pair]]:
    try:
        kept = json.loads(_file().read_text(encoding="utf-8"))
        return {name: [(str(check), int(size)) for check, size in pairs] for name, pairs in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # no file, or an invalid one


def last_failed(name: str) -> list[Pair]:
    """Return a component's checks that failed and haven't passed since."""
    return _kept().get(name, [])


def keep_failed(name: str, outcomes: Iterable[Outcome]) -> None:
    """Save failed checks, and forget those that passed. Does nothing if the file can't be written."""
    tried = {(outcome.check, outcome.world_size): outcome.verdict == "failed" for outcome in outcomes}
    kept = _kept()
    before = kept.get(name, [])
    now = [pair for pair in before if pair not in tried] + [pair for pair, failed in tried.items() if failed]
    if now == before:
        return
    kept[name] = now
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        beside = _file().with_suffix(f".{os.getpid()}")
        beside.write_text(
            json.dumps({name: pairs for name, pairs in kept.items() if pairs}), encoding="utf-8"
        )
        beside.replace(_file())
