"""Runs programs written for Lightning: as they are, with Stratagem's import, and with that in two processes.

    make moving DIR=folder

copies each program of a folder, rewrites its imports as `stratagem migrate` does and nothing else, and prints
what became of it: logged values (`metrics.csv` of CSVLogger) and lines that begin with RESULT are compared.
For two processes `devices=1` is replaced by `devices=2, strategy="ddp"` in it.
"""

from __future__ import annotations

import csv
import json
import math
import os
import runpy
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratagem_lightning.migration.python import Lack, rewrite

TWO_PROCESSES = {
    "devices=1,": 'devices=2, strategy="ddp",',
    "devices=1)": 'devices=2, strategy="ddp")',
    '"--trainer.devices=1"': '"--trainer.devices=2", "--trainer.strategy=ddp"',
}
TIMEOUT_S = 300
Values = dict[tuple[str, str], list[tuple[int, float]]]
"""Logged values with their steps, in their order, by the logger's and the metric's name."""


@dataclass
class Outcome:
    """What a program did.

    Attributes:
        error: the last lines of its output, where it failed.
        logged: values of its metrics.csv files.
        printed: numbers of its lines that begin with RESULT.
        lacks: what the migration could not find.
    """

    error: str | None = None
    logged: Values = field(default_factory=dict)
    printed: list[float] = field(default_factory=list)
    lacks: list[Lack] = field(default_factory=list)


def prepare(program: Path, folder: Path, imports: bool, processes: int = 1) -> list[Lack]:
    """Copy a program into `folder`, with its imports rewritten where `imports`, and for so many processes."""
    folder.mkdir(parents=True)
    source, lacks = program.read_text(), []
    if imports:
        source, lacks = rewrite(source)
    if processes == 2:
        for one, two in TWO_PROCESSES.items():
            source = source.replace(one, two)
    (folder / program.name).write_text(source)
    return lacks


def run_together(folders: list[Path]) -> None:
    """Run the program of each folder, one after the other in a process of its own for all of them."""
    subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--together", *map(str, folders)], env=_environ()
    )


def run_alone(folder: Path) -> None:
    """Run the program of a folder in a process of its own."""
    (program,) = folder.glob("*.py")
    with (folder / "output").open("w") as output:
        command = [sys.executable, "-W", "ignore", program.name]
        where: dict[str, Any] = {
            "cwd": folder,
            "stdout": output,
            "stderr": subprocess.STDOUT,
            "env": _environ(),
        }
        try:
            code = subprocess.run(command, timeout=TIMEOUT_S, **where).returncode
        except subprocess.TimeoutExpired:
            code = f"it ran longer than {TIMEOUT_S} s"
    if code:
        (folder / "failed").write_text(str(code))


def outcome(folder: Path) -> Outcome:
    """Read what the program of a folder left."""
    text = (folder / "output").read_text() if (folder / "output").exists() else "it never ran"
    found = Outcome()
    if (folder / "failed").exists() or not (folder / "output").exists():
        found.error = text[-3000:]
    for line in text.splitlines():
        _, said, numbers = line.partition("RESULT ")
        if said:
            found.printed += [float(number) for number in numbers.split()]
    for path in sorted(folder.rglob("metrics.csv")):
        name = path.relative_to(folder).parts[1] if len(path.relative_to(folder).parts) > 1 else ""
        with path.open() as file:
            for row in csv.DictReader(file):
                step = int(row.pop("step"))
                for metric, value in row.items():
                    if metric not in (None, "epoch", "") and value:
                        values = found.logged.setdefault((name, metric), [])
                        # Once where it stays the same: Lightning's monitors log at each batch of a step.
                        if not values or values[-1][1] != float(value):
                            values.append((step, float(value)))
    return found


def difference(ours: Outcome, theirs: Outcome) -> str | None:
    """Say in a sentence where two runs of a program differ; None where each value of a step is equal, bit by bit.

    Means over an epoch, and what a program prints, may differ by 2e-6 of the value.
    A row of ours has the number of completed steps, Lightning's that of the last step, from 0; what is logged
    outside of steps may be in another row: the values of each metric are compared in their order.
    """
    mine, wanted = ours.logged, theirs.logged
    for key, values in wanted.items():
        if key not in mine:
            return f"{key[1]} isn't logged ({key[0]}): there are {sorted(name for _, name in mine)}"
        if len(mine[key]) != len(values):
            return f"{key[1]} is logged {len(mine[key])} times, and {len(values)} times under Lightning ({key[0]})"
        for (step, value), (_, other) in zip(mine[key], values, strict=True):
            is_mean = len(values) < max(map(len, wanted.values()))  # ours in float64, Lightning's in float32
            close = math.isclose(value, other, rel_tol=2e-6) if is_mean else value == other
            if not close and not (math.isnan(value) and math.isnan(other)):
                return f"{key[1]} of step {step} ({key[0]}) is {value!r}, and {other!r} under Lightning"
    if len(ours.printed) != len(theirs.printed) or not all(
        math.isclose(*pair, rel_tol=2e-6) for pair in zip(ours.printed, theirs.printed, strict=True)
    ):
        return f"printed were {ours.printed[:4]}, and {theirs.printed[:4]} under Lightning"
    return None


def _environ() -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _run_here(folders: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    for folder in map(Path, folders):
        (program,) = folder.glob("*.py")
        os.chdir(folder)
        output = os.open("output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1), os.dup2(output, 2)
        try:
            sys.argv = [program.name]
            runpy.run_path(program.name, run_name="__main__")
        except (Exception, SystemExit):
            traceback.print_exc()
            Path("failed").write_text("an error")
        sys.stdout.flush(), sys.stderr.flush()


def main(directory: str) -> None:
    """Run each program of a folder in three ways, and print a line for each."""
    import tempfile

    programs = sorted(Path(directory).glob("*.py"))
    if not programs:
        sys.exit(f"Error: DIR {directory!r} has no Python program")
    with tempfile.TemporaryDirectory() as base:
        ways = {"lightning": (False, 1), "ours": (True, 1), "ours, 2 processes": (True, 2)}
        for program in programs:
            found: dict[str, Outcome] = {}
            for way, (imports, processes) in ways.items():
                folder = Path(base) / way / program.stem
                lacks = prepare(program, folder, imports, processes)
                run_alone(folder)
                found[way] = outcome(folder)
                found[way].lacks = lacks
            said = [f"{way}: {'failed' if each.error else 'ok'}" for way, each in found.items()]
            if not found["lightning"].error and not found["ours"].error:
                said.append(difference(found["ours"], found["lightning"]) or "values equal")
            print(f"{program.name:24} {' · '.join(said)}")
            for lack in found["ours"].lacks:
                print(f"    line {lack.line}: {lack.what}: {lack.reason}")
            for way, each in found.items():
                if each.error:
                    print(f"    {way}: {each.error.strip().splitlines()[-1]}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--together"]:
        _run_here(sys.argv[2:])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        sys.exit(f"Error: one folder of programs is wanted, got {json.dumps(sys.argv[1:])}")
