"""The printed plan: what was chosen, from where, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratagem.launchers.base import RUN_SECRET_VARIABLE

if TYPE_CHECKING:
    from stratagem.resolve.run import Run

_MAX_NAMES = 5


def plan_lines(run: Run) -> list[str]:
    """Return the plan, a line per part of the run."""
    world_size = run.world_size
    how = "in this process" if world_size == 1 else f"start_method {run.plan.start_method}"
    if run.environment.creates_processes:
        how = f"made by {run.environment.name}"
    nodes = f"{run.plan.num_nodes} node{'s' * (run.plan.num_nodes != 1)}"
    if run.plan.is_elastic and not run.environment.creates_processes:
        least = (run.plan.min_nodes or 1) * run.plan.processes_per_node
        lines = [f"{'processes':<12}{least} to {world_size} on {run.plan.min_nodes} to {nodes}, {how}"]
    else:
        lines = [f"{'processes':<12}{world_size} on {nodes}, {how}"]
    for each in run.resolved:
        why = f" · {each.why}" if each.why else ""
        lines.append(f"{each.kind:<12}{each.name:<13} {each.origin}{why}")
    if run.plan.num_nodes > 1 and run.plan.rdzv_endpoint:
        lines.append(f"{'rendezvous':<12}{run.plan.rdzv_backend} at {run.plan.rdzv_endpoint}")
        if run.plan.run_id is None:
            told = f"none: whoever reaches the nodes can take part; {RUN_SECRET_VARIABLE} is what keeps others out"
            lines.append(f"{'secret':<12}{told}")
    return [*lines, *run.strategy.plan_lines()]


def announce(run: Run) -> None:
    """Print the plan to standard error, once per run."""
    print("\n".join(["plan", *(f"  {line}" for line in plan_lines(run))]), file=sys.stderr, flush=True)


def announce_by_value(names: Sequence[str]) -> None:
    """Print what workers are sent the code of, since they can't import it; in the launching process."""
    listed = ", ".join(names[:_MAX_NAMES]) + " …" * (len(names) > _MAX_NAMES)
    line = f"{listed} · by cloudpickle, since workers can't import it"
    print(f"  {'by value':<12}{line}", file=sys.stderr, flush=True)


def announce_data(training: str, validation: str) -> None:
    """Print how ranks share the data, once it is known; on rank 0."""
    lines = [f"  {'training':<12}{training}", f"  {'validation':<12}{validation}"]
    print("\n".join(lines), file=sys.stderr, flush=True)
