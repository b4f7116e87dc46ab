"""From command to first finished step: python tests/benchmarks/startup.py

`stratagem fit` beside the same program written by hand under torchrun, alternating. Wall time ends at
rank 0's first optimizer step; CPU time is that of all processes until the command has ended, right
after that step.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
HERE = Path(__file__).parent
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans become ours, so that their CPU time is counted


def measure(command: list[str]) -> tuple[float, float]:
    """Run a command; return wall seconds to the first step, and CPU seconds of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        first_step = Path(folder) / "first_step"
        environ = {**os.environ, "BENCH_FIRST_STEP": str(first_step), "PYTHONPATH": str(HERE)}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.time()
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = float(first_step.read_text()) - began
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    scripts = Path(sys.executable).parent
    for processes in (2, 4):
        ours = [
            *(str(scripts / "stratagem"), "fit", "startup_program:Startup", "--strategy", "ddp"),
            *("--accelerator", "cpu", "--devices", str(processes), "--max-steps", "1", "--run-dir", "run"),
            *("--set", "trainer.limit_train_batches=1", "--set", "trainer.enable_checkpointing=false"),
        ]
        theirs = [
            str(scripts / "torchrun"),
            f"--nproc-per-node={processes}",
            str(HERE / "startup_program.py"),
        ]
        pairs = []
        for round_index in range(ROUNDS + 1):
            pair = (measure(ours), measure(theirs))
            if round_index:  # the first is warm-up
                pairs.append(pair)
        for name, column in (("wall", 0), ("CPU", 1)):
            ratios = [mine[column] / hand[column] for mine, hand in pairs]
            mine = statistics.median(pair[0][column] for pair in pairs)
            hand = statistics.median(pair[1][column] for pair in pairs)
            print(
                f"{processes} processes, {name}: {statistics.median(ratios):.3f}x "
                f"({min(ratios):.3f} to {max(ratios):.3f}); {mine:.2f} s, torchrun {hand:.2f} s"
            )


if __name__ == "__main__":
    if shutil.which("torchrun", path=str(Path(sys.executable).parent)) is None:
        sys.exit("torchrun isn't installed beside this Python")
    main()
