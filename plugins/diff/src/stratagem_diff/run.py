"""`Run`: one side of a comparison, which is trained and recorded in processes of its own."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stratagem.errors import UsageError
from stratagem_diff.extension import VARIABLE, RecordingOrder

FLAGS = ("strategy", "devices", "accelerator", "precision", "seed")
"""Flags of `stratagem fit` and `stratagem run` that a side may have."""
ACCUMULATION = "trainer.accumulate_grad_batches"
"""The setting by which sides of different size get the same batch per optimizer step."""


@dataclass(frozen=True)
class Run:
    """A training: what `stratagem fit` or `stratagem run` is given."""

    target: str
    """file.py:Class or package.module:Class, or a script with its own loop."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Values of `FLAGS`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of `--set`."""
    others: tuple[str, ...] = ()
    """Further arguments of the command, such as ("--config", FILE)."""
    python: str = sys.executable
    """The interpreter."""
    cwd: str = "."
    """The working directory: another checkout has another version of the user's code."""
    compile: bool = False
    """Whether the user's module is compiled."""

    @property
    def is_script(self) -> bool:
        """Whether the target is a script with its own loop."""
        return self.target.endswith(".py")

    def changed(self, changes: Sequence[str]) -> Run:
        """Return the run with some changes.

        Args:
            changes: KEY=VALUE each, where KEY is one of `FLAGS`, "target", "python", "cwd" or a dotted setting;
                "compile"; or the name of a strategy.

        Raises:
            UsageError: a key that doesn't exist.
        """
        run = self
        for change in changes:
            key, equals, value = change.partition("=")
            if change == "compile":
                run = replace(run, compile=True)
            elif not equals:
                run = replace(run, flags={**run.flags, "strategy": change})
            elif key in FLAGS:
                run = replace(run, flags={**run.flags, key: value})
            elif key in ("target", "python", "cwd"):
                run = replace(run, **{key: value})  # type: ignore[arg-type]  # these fields are text
            elif "." in key:
                run = replace(run, settings={**run.settings, key: value})
            else:
                allowed = ", ".join((*FLAGS, "target", "python", "cwd"))
                raise UsageError(
                    f"--against {change}: {key!r} isn't a key; give the name of a strategy, compile, or KEY=VALUE "
                    f"with one of {allowed}, or a setting such as model.hidden=64"
                )
        if run.flags.get("strategy") == "single":
            run = replace(run, flags={**run.flags, "devices": "1"})
        return run

    def command(self, steps: int, run_dir: str) -> list[str]:
        """Return the command line that trains for some optimizer steps."""
        selection = [word for key, value in self.flags.items() for word in (f"--{key}", value)]
        start = [self.python, "-m", "stratagem"]
        # What ranks hold differently is to be recorded, not to end the run.
        use = ["--use", "stratagem_diff.extension:Recording", "--check-replicas-every", "0"]
        if self.is_script:
            return [*start, "run", *selection, *use, self.target]
        settings = {
            "trainer.limit_val_batches": "0",
            "trainer.enable_checkpointing": "false",
            **self.settings,
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        limits = ["--max-steps", str(steps), "--run-dir", run_dir]
        return [*start, "fit", self.target, *selection, *use, *limits, *self.others, *sets]

    def describe(self) -> str:
        """Return what the run is, in one line."""
        words = [f"{key} {value}" for key, value in self.flags.items()]
        words += [f"{key}={value}" for key, value in self.settings.items()]
        words += ["compiled"] if self.compile else []
        words += [f"python {self.python}"] if self.python != sys.executable else []
        words += [f"in {self.cwd}"] if self.cwd != "." else []
        return ", ".join([self.target, *words])


def with_common_batch(a: Run, b: Run) -> tuple[Run, Run]:
    """Return both runs with the same samples per optimizer step: the one with fewer devices accumulates batches.

    Nothing is changed where a run says itself how many batches it accumulates, and in scripts.
    """
    counts = [run.flags.get("devices", "1") for run in (a, b)]
    is_set = any(ACCUMULATION in run.settings or run.is_script for run in (a, b))
    if is_set or counts[0] == counts[1]:
        return a, b
    for count in counts:
        if not count.isdecimal() or int(count) < 1:
            raise UsageError(
                f"devices {count} isn't a number, and the sides have different devices: give a number, such as 2"
            )
    common = math.lcm(*map(int, counts))
    made = []
    for run, count in zip((a, b), counts):
        batches = common // int(count)
        settings = {**run.settings, ACCUMULATION: str(batches)} if batches > 1 else run.settings
        made.append(replace(run, settings=settings))
    return made[0], made[1]


def record_run(run: Run, order: RecordingOrder, label: str) -> None:
    """Train a run, and record it.

    Args:
        run: what is trained.
        order: what is recorded, and where.
        label: how messages call the run, such as "A".

    Raises:
        UsageError: the run can't be started, or it failed.
    """
    folder = Path(order.folder).resolve()
    order = replace(order, folder=str(folder), compile=run.compile)
    command = run.command(order.options.steps, f"{folder}-run")
    environment = {**os.environ, VARIABLE: order.to_json()}
    if not Path(run.cwd).is_dir():
        raise UsageError(f"side {label} runs in {run.cwd}, which isn't a folder")
    try:
        done = subprocess.run(command, cwd=run.cwd, env=environment, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(f"side {label} can't be started by {run.python}: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1].removeprefix("Error: ") if lines else f"exit code {done.returncode}"
        raise UsageError(f"side {label} ({run.describe()}) failed: {last}")
    if not list(folder.glob("rank-*")):
        raise UsageError(f"side {label} ({run.describe()}) trained nothing under a Runtime or Trainer")
