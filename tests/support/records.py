"""Records of runs that never were, as stratagem-report's extension would have written them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stratagem_report.files import FORMAT, record_path
from stratagem_report.phases import PHASES

MS = 1_000_000


def row(steps: int = 1, samples: int = 32, **ms: float) -> tuple[int, int, list[int]]:
    """A row: how many steps, samples, and milliseconds by phase; "forward_and_backward" is one, too."""
    by_name = {name.replace("_", " "): value for name, value in ms.items()}
    assert set(by_name) <= set(PHASES)
    return steps, samples, [int(by_name.get(name, 0) * MS) for name in PHASES]


def write_rank(
    run_dir: Path,
    rows: Iterable[tuple[int, int, Sequence[int]]],
    *,
    rank: int = 0,
    attempt: int = 0,
    began: float = 1_000_000.0,
    end: str | None = "done",
    events: Sequence[Mapping[str, Any]] = (),
    world_size: int = 1,
    memory: Mapping[str, int] | None = None,
    device_steps: Iterable[tuple[int, int, Sequence[int]]] = (),
    **header: Any,
) -> Path:
    """Write one rank's file, and return its path; of `device_steps`, made by `row`, every tenth step is one."""
    path = Path(record_path(str(run_dir), attempt, rank))
    path.parent.mkdir(parents=True, exist_ok=True)
    first = {"format": FORMAT, "attempt": attempt, "rank": rank, "began": began, "phases": PHASES}
    further = {
        "world_size": world_size,
        "data_ranks": world_size,
        "device": "cpu",
        "host": "node",
        "plan": [],
    }
    lines: list[dict[str, Any]] = [{**first, **further, **header}]
    at, written = 0, []
    for steps, samples, ns in rows:
        at += sum(ns)
        written.append([steps, at, samples, *ns])
    lines.append({"rows": written})
    if sampled := [[3 + 10 * index, *ns] for index, (_, _, ns) in enumerate(device_steps)]:
        lines.append({"device": sampled})
    lines.append({"memory": memory or {"resident_bytes": 300 * 2**20}, "at": at})
    lines += events
    if end is not None:
        lines.append({"end": end})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path
