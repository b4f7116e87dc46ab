"""Random signals to random processes of a training run, which must lose nothing by them.

`python -m tests.soak.signals` trains each strategy twice, once unbroken and once stopped by signals again and again,
each time started again by the same command. It fails unless every stop exits with 75, every micro-batch is trained
on once, and the finished weights and optimizer states are bitwise those of the unbroken run.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import load_file
from stratagem_launch.preemption import EXIT_CODE

STRATEGIES = {"single": 1, "ddp": 2, "fsdp": 2, "ddp_sharded": 2}
"""Name → processes."""
NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
EPOCHS, ACCUMULATE, VAL_EVERY = 3, 2, 24
MODULE = f"{Path(__file__).with_name('interrupted_module.py')}:Interrupted"


@dataclass
class Outcome:
    """What came of a strategy's interrupted training."""

    strategy: str
    signals: int = 0
    runs: int = 0
    problems: list[str] = field(default_factory=list)
    exit_s: list[float] = field(default_factory=list)
    """From a signal to the end of the launching process."""


class Interruptions:
    """One strategy's two trainings.

    Args:
        strategy: a key of `STRATEGIES`.
        folder: for both runs.
        count: samples of an epoch.
        seed: of what is sent when to whom.
    """

    def __init__(self, strategy: str, folder: Path, count: int, seed: int) -> None:
        self.strategy, self.folder, self.count = strategy, folder, count
        self.processes = STRATEGIES[strategy]
        self.random = random.Random(f"{strategy}{seed}")
        self.outcome = Outcome(strategy)

    def start(self, name: str, *more: str) -> subprocess.Popen[str]:
        """Start a run whose files are in the folder `name`."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for path in folder.glob("pid.*"):
            path.unlink()
        command = [sys.executable, "-m", "stratagem", "fit", MODULE, "--set", f"model.folder={folder}"]
        command += [
            "--set",
            f"model.count={self.count}",
            "--run-dir",
            str(folder / "run"),
            "--accelerator",
            "cpu",
        ]
        command += [
            "--strategy",
            self.strategy,
            "--devices",
            str(self.processes),
            "--max-epochs",
            str(EPOCHS),
        ]
        command += ["--set", f"trainer.accumulate_grad_batches={ACCUMULATE}"]
        command += ["--set", f"trainer.val_check_interval={VAL_EVERY}", *more]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ
        )

    def interrupt(self, signals: int, longest_s: float) -> Outcome:
        """Run both trainings, the second with so many signals, and compare.

        Args:
            signals: to send.
            longest_s: at most so long after a run has begun.
        """
        whole = self.start("whole")
        _, said = whole.communicate()
        if whole.returncode != 0:
            raise SystemExit(f"the unbroken run failed:\n{said}")
        while self.outcome.signals < signals:
            process = self.start("stopped", "--ckpt-path", "auto")
            self.outcome.runs += 1
            if not self._send(process, longest_s):
                break
        else:
            last = self.start("stopped", "--ckpt-path", "auto")
            self.outcome.runs += 1
            _, said = last.communicate()
            if last.returncode != 0:
                self._problem(f"the last run exited with {last.returncode}: {said[-2000:]}")
        self._compare()
        return self.outcome

    def _send(self, process: subprocess.Popen[str], longest_s: float) -> bool:
        """Send one signal, and wait for the end; False where there is nothing to go on with."""
        pids = self._pids(process)
        time.sleep(self.random.uniform(0, longest_s))
        number = self.random.choice(NUMBERS)
        target = self.random.choice([process.pid, *pids] if self.processes > 1 else [process.pid])
        if process.poll() is None:
            began = time.monotonic()
            try:
                os.kill(target, number)
            except ProcessLookupError:
                pass
            else:
                self.outcome.signals += 1
        _, said = process.communicate(timeout=120)
        if process.returncode == EXIT_CODE:
            self.outcome.exit_s.append(time.monotonic() - began)
            if not re.search(r"saved .*preempted-step=\d+", said):
                self._problem(f"nothing says where it saved: {said[-500:]}")
            return True
        if process.returncode != 0:
            self._problem(
                f"{number.name} to {target} of {process.pid}, {pids}: {process.returncode}: {said[-2000:]}"
            )
        return False

    def _pids(self, process: subprocess.Popen[str]) -> list[int]:
        deadline = time.monotonic() + 120
        paths = [self.folder / "stopped" / f"pid.{rank}" for rank in range(self.processes)]
        while process.poll() is None and time.monotonic() < deadline:
            if all(path.exists() and path.read_text() for path in paths):
                return [int(path.read_text()) for path in paths]
            time.sleep(0.05)
        return []

    def _compare(self) -> None:
        for rank in range(self.processes):
            whole, stopped = (
                (self.folder / name / f"steps.{rank}").read_text() for name in ("whole", "stopped")
            )
            if whole != stopped:
                had, has = whole.splitlines(), stopped.splitlines()
                self._problem(f"rank {rank} trained on {len(has)} micro-batches, and unbroken on {len(had)}")
        whole_digests, digests = (tensors_of(self.folder / name / "run") for name in ("whole", "stopped"))
        if not digests or whole_digests != digests:
            differing = [
                key for key in {**whole_digests, **digests} if whole_digests.get(key) != digests.get(key)
            ]
            self._problem(f"the finished tensors differ: {differing}")

    def _problem(self, text: str) -> None:
        self.outcome.problems.append(text)


def tensors_of(run_dir: Path) -> dict[str, tuple[str, ...]]:
    """Digests of all that the files with tensors in the last checkpoint of a run have under each key.

    In which file a whole tensor lies may differ.
    """
    digests: dict[str, list[str]] = defaultdict(list)
    for path in (run_dir / "checkpoints" / "last").rglob("*.safetensors"):
        of_rank = path.name if path.name.startswith("rank-") else ""
        for key, tensor in load_file(path).items():
            digests[of_rank + key].append(
                sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()[:16]
            )
    return {key: tuple(sorted(of_key)) for key, of_key in sorted(digests.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=52, help="over all strategies")
    parser.add_argument("--count", type=int, default=2400, help="samples of an epoch")
    parser.add_argument("--longest-s", type=float, default=2.0, help="from a run's first step to a signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    given = parser.parse_args()
    each = -(-given.signals // len(given.strategies))
    failed = False
    for strategy in given.strategies:
        with tempfile.TemporaryDirectory() as folder:
            outcome = Interruptions(strategy, Path(folder), given.count, given.seed).interrupt(
                each, given.longest_s
            )
        slowest, mean = max(outcome.exit_s, default=0.0), sum(outcome.exit_s) / max(1, len(outcome.exit_s))
        print(
            f"{strategy:<12} {outcome.signals} signals, {len(outcome.exit_s)} saved and exited with {EXIT_CODE}, "
            f"{len(outcome.problems)} problems; signal to exit {mean:.1f} s "
            f"on average, {slowest:.1f} s at most",
            flush=True,
        )
        for problem in outcome.problems:
            failed = True
            print(f"  {problem}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
