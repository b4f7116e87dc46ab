"""Random kills over one training, which must come out as if nothing had been.

`python -m tests.soak.kills` trains each strategy twice: once unbroken, and once with a rank killed by SIGKILL again
and again, while it trains, reduces gradients, saves and evaluates. It fails unless every kill was survived by
`--max-restarts`, and the finished weights and optimizer states are bitwise those of the unbroken run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.portability.cell import contents
from tests.soak.killed_module import plan

STRATEGIES = ("ddp", "fsdp", "ddp_sharded", "deepspeed_stage_2")
RANKS, STEPS, EPOCHS, SAVE_EVERY, VALIDATE_EVERY = 2, 100, 4, 4, 10
MODULE = f"{Path(__file__).with_name('killed_module.py')}:Killed"
CONFIG = f"""
trainer:
  callbacks:
  - class_path: stratagem.ModelCheckpoint
    init_args: {{every_n_train_steps: {SAVE_EVERY}}}
"""


@dataclass
class Outcome:
    """What came of a strategy's two trainings."""

    strategy: str
    kills: Counter[str] = field(default_factory=Counter)
    """By what the rank was doing."""
    unbroken_s: float = 0.0
    broken_s: float = 0.0
    problems: list[str] = field(default_factory=list)


def soak(strategy: str, folder: Path, kills: int, seed: int, epochs: int = EPOCHS) -> Outcome:
    """Train without kills and with them, and compare."""
    outcome = Outcome(strategy)
    outcome.unbroken_s = _fit(strategy, folder / "unbroken", 0, seed, epochs, outcome)
    outcome.broken_s = _fit(strategy, folder / "broken", kills, seed, epochs, outcome)
    done = [path.read_text().split()[0] for path in (folder / "broken").glob("killed.*")]
    outcome.kills = Counter(done)
    if len(done) != kills:
        outcome.problems.append(f"{len(done)} of {kills} kills came before the training was over")
    if not outcome.problems:
        unbroken, broken = (_finished(folder / name) for name in ("unbroken", "broken"))
        if unbroken.keys() != broken.keys():
            outcome.problems.append("the finished checkpoint has other tensors than the unbroken run's")
        differ = [
            key for key in unbroken.keys() & broken.keys() if not torch.equal(unbroken[key], broken[key])
        ]
        if differ:
            outcome.problems.append(f"{sorted(differ)} differ from the unbroken run's")
    return outcome


def _fit(strategy: str, folder: Path, kills: int, seed: int, epochs: int, outcome: Outcome) -> float:
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(plan(kills, RANKS, seed)))
    (folder / "every.yaml").write_text(CONFIG)
    settings = {
        "model.folder": folder,
        "model.samples": STEPS * RANKS * 4,
        "trainer.val_check_interval": VALIDATE_EVERY,
        "trainer.enable_progress_bar": "false",
    }
    command = [
        *(sys.executable, "-m", "stratagem", "fit", MODULE, "--config", str(folder / "every.yaml")),
        *("--strategy", strategy, "--accelerator", "cpu", "--devices", str(RANKS), "--seed", "3"),
        *("--max-epochs", str(epochs), "--max-restarts", str(kills), "--run-dir", str(folder / "run")),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]
    began = time.monotonic()
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder / "log", "w") as log:
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=environ, timeout=3600
        ).returncode
    if code != 0:
        said = (folder / "log").read_text()[-3000:]
        outcome.problems.append(f"with {kills} kills to come it exited with code {code}: {said}")
    return time.monotonic() - began


def _finished(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors in the last checkpoint of a run: ranks may share out the writing of copies otherwise."""
    return contents(str(folder / "run" / "checkpoints" / "last"))


def main() -> None:
    """Soak the strategies that are asked for."""
    parser = argparse.ArgumentParser(description="Random kills over one training of each strategy.")
    parser.add_argument("strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    failed = False
    for strategy in chosen.strategies:
        with tempfile.TemporaryDirectory(prefix="stratagem-kills-") as folder:
            outcome = soak(strategy, Path(folder), chosen.kills, chosen.seed)
        failed |= bool(outcome.problems)
        by_phase = ", ".join(f"{count} in {phase}" for phase, count in sorted(outcome.kills.items()))
        per_kill = (outcome.broken_s - outcome.unbroken_s) / chosen.kills
        verdict = "; ".join(outcome.problems) or "survived, bitwise equal"
        print(
            f"{strategy}: {sum(outcome.kills.values())} kills ({by_phase}), {outcome.unbroken_s:.0f} s unbroken, "
            f"{outcome.broken_s:.0f} s with them, {per_kill:.1f} s each: {verdict}",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
