"""The printed plan: what was chosen, from where, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from stratagem.launchers.base import RUN_SECRET_VARIABLE

if TYPE_CHECKING:
    from stratagem.resolve.run import Run

_MAX_NAMES = 5
_WIDTH = 98
"""Maximum length of a line, without the indent of two columns. Longer texts continue below, in their own column."""
_LABEL, _MAX_NAME, _MAX_REASON_AT = 12, 20, 60
_BOLD, _CYAN = 1, 36


def plan_lines(run: Run) -> list[str]:
    """Return the plan, with one component per line: its name, the distribution it is from, and why it was chosen."""
    world_size = run.world_size
    how = "in this process" if world_size == 1 else f"start_method {run.plan.start_method}"
    if run.environment.creates_processes:
        how = f"made by {run.environment.name}"
    nodes = f"{run.plan.num_nodes} node{'s' * (run.plan.num_nodes != 1)}"
    processes = f"{world_size} on {nodes}"
    if run.plan.is_elastic and not run.environment.creates_processes:
        least = (run.plan.min_nodes or 1) * run.plan.processes_per_node
        processes = f"{least} to {world_size} on {run.plan.min_nodes} to {nodes}"
    chosen = [(each.kind, each.name, each.origin, each.why) for each in run.resolved]
    lines = _columns([("processes", processes, "", how), *chosen])
    if run.plan.num_nodes > 1 and run.plan.rdzv_endpoint:
        lines += _labelled("rendezvous", f"{run.plan.rdzv_backend} at {run.plan.rdzv_endpoint}")
        if run.plan.run_id is None:
            text = (
                f"none: any process that reaches the nodes can join; set {RUN_SECRET_VARIABLE} to prevent it"
            )
            lines += _labelled("secret", text)
    for line in run.strategy.describe_run(run):
        lines += _wrapped("", line, _LABEL)
    return lines


def announce(run: Run) -> None:
    """Print the plan to standard error, once per run."""
    _print(plan_lines(run), "plan")


def announce_by_value(names: Sequence[str]) -> None:
    """Print whose code is sent to workers, since they can't import it. Called in the launching process."""
    listed = ", ".join(names[:_MAX_NAMES]) + " …" * (len(names) > _MAX_NAMES)
    _print(_labelled("by value", f"{listed} · by cloudpickle, since workers can't import it"))


def announce_data(training: str, validation: str) -> None:
    """Print how ranks share the data, once it is known; on rank 0."""
    _print([*_labelled("training", training), *_labelled("validation", validation)])


def _columns(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    width = max(13, *(len(name) for _, name, origin, _ in rows if origin and len(name) <= _MAX_NAME))
    heads = [f"{label:<{_LABEL}}{name:<{width}} {origin}".rstrip() for label, name, origin, _ in rows]
    reason_at = max(len(head) for head, row in zip(heads, rows) if row[-1]) + 2
    reason_at = min(reason_at, _MAX_REASON_AT)
    lines = []
    for head, (*_, reason) in zip(heads, rows):
        if reason and len(head) < reason_at:
            lines += _wrapped(f"{head:<{reason_at}}", reason, reason_at)
        else:
            lines += [*_wrapped("", head, _LABEL), *_wrapped(" " * reason_at, reason, reason_at)]
    return lines


def _labelled(label: str, text: str) -> list[str]:
    return _wrapped(f"{label:<{_LABEL}}", text, _LABEL)


def _wrapped(before: str, text: str, indent: int) -> list[str]:
    return wrap(
        text,
        _WIDTH,
        initial_indent=before,
        subsequent_indent=" " * indent,
        break_long_words=False,  # so that names and addresses can be copied
        break_on_hyphens=False,
    )


def _print(lines: Sequence[str], title: str = "") -> None:
    text = "\n".join(f"  {_with_coloured_label(line)}" for line in lines)
    print(f"{_styled(title, _BOLD)}\n{text}" if title else text, file=sys.stderr, flush=True)


def _with_coloured_label(line: str) -> str:
    label, gap, rest = line.partition("  ")
    return _styled(label, _CYAN) + gap + rest if len(label) < _LABEL else line


def _styled(text: str, code: int) -> str:
    """Return styled text if standard error is a terminal that supports it (https://no-color.org)."""
    plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not text.strip() else f"\033[{code}m{text}\033[0m"
