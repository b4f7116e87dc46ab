"""Ten planted hangs, each of which must be laid to the right rank and place: `python -m tests.soak.hangs`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("hanging_module.py")
VICTIM = 1
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")


@dataclass(frozen=True)
class Hang:
    """What the error of a planted hang must say."""

    kind: str
    line: str = ""
    """A comment in the line of `hanging_module.py` where the rank stands."""
    says: str = ""
    """A pattern, where that isn't it."""


HANGS = (
    Hang("skipped_collective", says=r"rank 1 on \S+ called all_reduce no\. \d+ .*others called .*\[7\]"),
    Hang("wrong_shape", says=r"rank 1 on \S+ called all_reduce .*\[8\].*others called .*\[7\]"),
    Hang("wrong_dtype", says=r"rank 1 on \S+ called all_reduce .*Double \[7\].*others called .*Float \[7\]"),
    Hang("rank_dependent_branch", "rank-dependent branch", r"rank 1 on \S+ called barrier"),
    Hang("loader_stall", "loader stall", r"rank 1 on .* in a worker of its data loader"),
    Hang("dead_peer", says=r"rank 1 on \S+ was ended by SIGKILL"),
    Hang("deadlock_in_teardown", "deadlock in teardown", r"rank 1 on "),
    Hang("sigstop", "# SIGSTOP", r"rank 1 on \S+ stood still, stopped by a signal"),
    Hang("infinite_loop", "infinite loop", r"rank 1 on .*missing from all_reduce"),
    Hang("uneven_epochs", says=r"rank 1 "),
    Hang("stuck_filesystem", "stuck filesystem", r"rank 1 on .*missing from all_reduce"),
)


@dataclass(frozen=True)
class Found:
    """What came of a planted hang."""

    problem: str | None
    error: str
    after_s: float | None
    """From the timeout to the report; None where the run failed before."""


def plant(
    hang: Hang, folder: Path, timeout_s: float, processes: int = 3, launcher: Sequence[str] = ()
) -> Found:
    """Run a fit that hangs, and look at its error.

    Args:
        hang: which.
        folder: of the run.
        timeout_s: of a step.
        processes: at least 2; where they differ in what they call, 3 tell who is alone.
        launcher: arguments of Python before ours, which start as many processes; ours does where none are given.
    """
    command = [sys.executable, *launcher, "-m", "stratagem", "fit", f"{FILE}:Hanging", "--strategy", "ddp"]
    command += ["--accelerator", "cpu", "--devices", str(processes), "--max-epochs", "1", "--max-steps", "20"]
    command += [
        "--set",
        f"model.kind={hang.kind}",
        "--set",
        f"model.folder={folder}",
        "--run-dir",
        str(folder / "run"),
    ]
    command += ["--step-timeout", str(timeout_s)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300, check=False)
    began = max((float(path.read_text()) for path in folder.glob("began.*")), default=0.0)
    named = max((path.stat().st_mtime for path in folder.glob("run/hang-*.txt")), default=0.0)
    error = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("Error: ")), "")
    after_s = named - began - timeout_s if named else None
    return Found(_problem(hang, done.returncode, error, done.stderr) and done.stderr[-3000:], error, after_s)


def _problem(hang: Hang, code: int, error: str, stderr: str) -> str | None:
    lines = FILE.read_text().splitlines()
    place = ""
    if hang.line:
        number = next(n for n, line in enumerate(lines, 1) if line.rstrip().endswith(hang.line))
        place = f"{FILE}:{number} in "
    right = code == 1 and place in error and re.search(hang.says, error)
    # The error says it: without restarts it isn't said at once as well.
    right = right and "  hang on " not in stderr
    return None if right else "not as it should be"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout-s", type=float, default=15.0)
    parser.add_argument(
        "--torchrun", action="store_true", help="processes are torchrun's, not our launcher's"
    )
    parser.add_argument("--kinds", nargs="+", default=[hang.kind for hang in HANGS])
    given = parser.parse_args()
    right = 0
    chosen = [hang for hang in HANGS if hang.kind in given.kinds]
    for hang in chosen:
        with tempfile.TemporaryDirectory() as folder:
            found = plant(hang, Path(folder), given.timeout_s, launcher=TORCHRUN if given.torchrun else ())
        right += found.problem is None
        when = "at once" if found.after_s is None else f"{found.after_s:.1f} s after the timeout"
        print(
            f"{hang.kind:<22} {'right' if found.problem is None else 'WRONG'}, {when}: {found.error}",
            flush=True,
        )
        if found.problem is not None:
            print(found.problem, flush=True)
    print(f"{right} of {len(chosen)} right")
    return int(right < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
