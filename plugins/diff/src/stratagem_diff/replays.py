"""`ReplayedStep`: one side of a comparison that is a kept step of a run, which `stratagem replay` runs again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratagem.errors import UsageError
from stratagem_diff.extension import VARIABLE, RecordingOrder
from stratagem_diff.recorder import RecordOptions

CAPSULES = "capsules"
"""Folder of a run in which `--use capsule` keeps steps."""


@dataclass(frozen=True)
class ReplayedStep:
    """A kept step, and how it is run again."""

    run: str
    """The run's folder."""
    step: int
    """Optimizer step, from 1."""
    strategy: str | None = None
    """None for that of the run."""
    accelerator: str | None = None
    """None for that of the run."""

    def changed(self, changes: Sequence[str]) -> ReplayedStep:
        """Return the step under what `--against` says: the name of a strategy, strategy=NAME or accelerator=NAME.

        Raises:
            UsageError: something else is to change.
        """
        step = self
        for change in changes:
            key, equals, value = change.partition("=")
            if not equals:
                key, value = "strategy", change
            if key not in ("strategy", "accelerator"):
                raise UsageError(
                    f"--against {change}: a kept step may have another strategy or accelerator; give the name of a "
                    "strategy, or accelerator=NAME"
                )
            step = replace(step, **{key: value})  # type: ignore[arg-type]  # both fields are text
        return step

    def command(self) -> list[str]:
        """Return the command line that runs the step again."""
        flags = {"strategy": self.strategy, "accelerator": self.accelerator}
        words = [word for key, value in flags.items() if value is not None for word in (f"--{key}", value)]
        use = ["--use", "stratagem_diff.extension:Recording"]
        start = [sys.executable, "-m", "stratagem", "replay", self.run, "--step", str(self.step)]
        return [*start, *words, *use, "--json"]

    def describe(self) -> str:
        """Return what it is, in one line."""
        words = [f"strategy {self.strategy}" if self.strategy is not None else "as in the run"]
        words += [f"accelerator {self.accelerator}"] if self.accelerator is not None else []
        return ", ".join([f"step {self.step} of {self.run}", *words])


def kept_step(run: str) -> int:
    """Return the first step of a run that raised or isn't finite; the only chosen one where there is none.

    Raises:
        UsageError: no step is kept, or several are as chosen.
    """
    steps: dict[str, set[int]] = {"failed": set(), "chosen": set()}
    for path in Path(run, CAPSULES).glob("*/step-*/event-*.json"):
        try:
            event = json.loads(path.read_bytes())
            steps["chosen" if event["reason"] == "chosen" else "failed"].add(int(event["step"]))
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise UsageError(f"{path} is damaged: {error}") from error
    if steps["failed"]:
        return min(steps["failed"])
    if len(steps["chosen"]) == 1:
        return steps["chosen"].pop()
    kept = (
        f"steps {', '.join(map(str, sorted(steps['chosen'])))}" if steps["chosen"] else "no step for a reason"
    )
    raise UsageError(f"give --step: {run} keeps {kept}")


def record_replay(side: ReplayedStep, folder: Path, label: str, *, rounding: bool = False) -> dict[str, Any]:
    """Run a step again, and record it.

    Args:
        side: which step, and how.
        folder: of the record.
        label: how messages call the side, such as "A".
        rounding: move values by a unit in the last place.

    Returns:
        What `stratagem replay --json` prints.

    Raises:
        UsageError: the step isn't kept, what it needs is damaged, or it raises an error.
    """
    order = RecordingOrder(str(folder.resolve()), RecordOptions(1, rounding=rounding), step=side.step)
    environment = {**os.environ, VARIABLE: order.to_json()}
    done = subprocess.run(side.command(), env=environment, capture_output=True, text=True)
    found = _json_at_end(done.stdout) if done.returncode in (0, 1) else None
    if found is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1].removeprefix("Error: ") if lines else f"exit code {done.returncode}"
        raise UsageError(f"side {label} ({side.describe()}) can't be replayed: {last}")
    errors = sorted((rank["time"], rank["rank"], rank["error"]) for rank in found["ranks"] if rank["error"])
    if errors:
        _, rank, text = errors[0]
        raise UsageError(
            f"side {label} ({side.describe()}) raises {text.splitlines()[0]} on rank {rank}, so that there is no "
            f"whole step to compare: `stratagem replay {side.run} --step {side.step}` shows the traceback"
        )
    return found


def _json_at_end(text: str) -> dict[str, Any] | None:
    """What a command has printed last, after what the user's code may have printed."""
    begin = f"\n{text}".rfind("\n{")
    if begin < 0:
        return None
    try:
        found: dict[str, Any] = json.loads(text[begin:])
    except ValueError:
        return None
    return found
