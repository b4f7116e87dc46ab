"""From command to first finished step, and from that to the end: python tests/benchmarks/startup.py

`stratagem fit` and scripts that import torch and start their own processes, beside the same program
written by hand under torchrun, alternating. The first step is rank 0's first optimizer step, which is also the
last; the end is when the command has ended and nothing holds its output any more. CPU time is that of all
processes. BENCH_ROUNDS (5) rounds with BENCH_PROCESSES ("2 4") processes.
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
from typing import NamedTuple

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
PROCESSES = [int(count) for count in os.environ.get("BENCH_PROCESSES", "2 4").split()]
HERE = Path(__file__).parent
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans become ours, so that their CPU time is counted


class Times(NamedTuple):
    """Seconds that a command took."""

    first_step: float
    """From its start to the first step."""
    end: float
    """From there to its end."""
    cpu: float
    """Of all its processes."""


def measure(command: list[str]) -> Times:
    """Run a command and all of its processes to their end."""
    with tempfile.TemporaryDirectory() as folder:
        first_step = Path(folder) / "first_step"
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "BENCH_FIRST_STEP": str(first_step), "PYTHONPATH": path}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.time()
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        ended = time.time()
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        stepped = float(first_step.read_text())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Times(stepped - began, ended - stepped, cpu)


def commands(processes: int) -> dict[str, list[str]]:
    """Return what is compared; the program by hand comes last."""
    scripts = Path(sys.executable).parent
    fit = [
        *(str(scripts / "stratagem"), "fit", "startup_program:Startup", "--strategy", "ddp"),
        *("--accelerator", "cpu", "--devices", str(processes), "--max-steps", "1", "--run-dir", "run"),
        *("--set", "trainer.limit_train_batches=1", "--set", "trainer.enable_checkpointing=false"),
    ]
    script = [sys.executable, str(HERE / "startup_script.py")]
    by_hand = [str(scripts / "torchrun"), f"--nproc-per-node={processes}", str(HERE / "startup_program.py")]
    return {
        "stratagem fit": fit,
        "script, Trainer": [*script, "Trainer", str(processes)],
        "script, Runtime": [*script, "Runtime", str(processes)],
        "torchrun": by_hand,
    }


def main() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for processes in PROCESSES:
        compared = commands(processes)
        rounds = []
        for round_index in range(ROUNDS + 1):
            times = {name: measure(command) for name, command in compared.items()}
            if round_index:  # the first is warm-up
                rounds.append(times)
        for name in compared:
            for field in Times._fields:
                ours = [getattr(times[name], field) for times in rounds]
                theirs = [getattr(times["torchrun"], field) for times in rounds]
                ratios = [mine / hand for mine, hand in zip(ours, theirs)]
                later = statistics.median(mine - hand for mine, hand in zip(ours, theirs))
                print(
                    f"{processes} processes, {name}, {field}: {statistics.median(ratios):.3f}x ({min(ratios):.3f} to "
                    f"{max(ratios):.3f}); {statistics.median(ours):.2f} s ({min(ours):.2f} to {max(ours):.2f}), "
                    f"{later:+.2f} s"
                )


if __name__ == "__main__":
    if shutil.which("torchrun", path=str(Path(sys.executable).parent)) is None:
        sys.exit("torchrun isn't installed beside this Python")
    main()
