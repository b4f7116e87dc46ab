"""Checkpoints written in the background while training goes on, of which none may be torn.

`python -m tests.soak.saves` trains each strategy twice and saves after every step: once each save waits, once they
are written in the background. It fails unless every checkpoint of the second run is byte for byte that of the first,
tensors, random number generators and samples alike. Then it kills what writes, again and again, and fails unless a
whole checkpoint is left each time.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_trainer.callbacks.base import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem import Checkpoint, LocalCollectives

STRATEGIES = {"single": 1, "ddp": 2, "fsdp": 2, "ddp_sharded": 2}
"""Name → processes."""


class Net(stratagem.Module):
    """Some megabytes, with dropout, so that random number generators count."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, width), nn.Dropout(0.1), nn.Linear(width, width), nn.Linear(width, 1)
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)


class SaveEachStep(Callback):
    """Saves after every step; on rank 0, notes what each checkpoint has once it is complete, and deletes it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.seen: dict[int, Any] = {}
        self.blocked_s: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        path = f"{self.folder}/step-{step}"
        began_s = time.perf_counter()
        trainer.save_checkpoint(path)
        self.blocked_s.append(time.perf_counter() - began_s)
        if trainer.is_main:
            trainer.when_saved(lambda: self.note(step, path))

    def note(self, step: int, path: str) -> None:
        reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(path)
        reader.read({key: torch.empty(info.shape, dtype=info.dtype) for key, info in reader.tensors.items()})
        assert reader.state["progress"]["step"] == step, (
            f"{path} is of step {reader.state['progress']['step']}"
        )
        files = json.loads(Path(path, "manifest.json").read_text())["files"]
        self.seen[step] = sorted((each["name"], each["xxh3_128"]) for each in files)
        shutil.rmtree(path)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        trainer.runtime.session.checkpointer.wait()
        if trainer.is_main:
            Path(self.folder, "seen.json").write_text(json.dumps([self.seen, self.blocked_s]))


def train(strategy: str, folder: Path, saves: int, in_background: bool) -> tuple[dict[str, Any], float]:
    """Train with a save after each of so many steps; what was in them, and the median of seconds that one blocked."""
    folder.mkdir()
    trainer = stratagem.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=STRATEGIES[strategy],
        max_epochs=-1,
        max_steps=saves,
        seed=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=SaveEachStep(str(folder)),
        run_dir=folder / "run",
        checkpoint_options={"async": in_background},
    )
    trainer.fit(Net)
    seen, blocked_s = json.loads((folder / "seen.json").read_text())
    return seen, statistics.median(blocked_s)


def compare(strategy: str, folder: Path, saves: int) -> bool:
    """Whether all checkpoints written in the background are those of saves that wait."""
    waited, waited_s = train(strategy, folder / f"{strategy}-waited", saves, in_background=False)
    written, blocked_s = train(strategy, folder / f"{strategy}-background", saves, in_background=True)
    torn = [step for step in waited if written.get(step) != waited[step]]
    print(
        f"{strategy:<12} {len(written)} saves, {len(torn)} torn or missing; one blocks {1e3 * blocked_s:.1f} ms, "
        f"and {1e3 * waited_s:.1f} ms where it waits",
        flush=True,
    )
    return len(written) == saves and not torn


def kill(folder: Path, kills: int, seed: int) -> bool:
    """Whether the former checkpoint, or the new one, is there whole after each kill of what writes the new one."""
    chance = random.Random(seed)
    checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")), async_=True)
    weights = {f"w{number}": torch.zeros(500_000) for number in range(4)}
    path, reported, new, torn = str(folder / "killed"), 0, 0, 0

    def save(step: int) -> None:
        for weight in weights.values():
            weight.fill_(step)
        checkpointer.save(path, Checkpoint(weights, {"step": step}))

    for step in range(0, 2 * kills, 2):
        save(step)
        checkpointer.wait()
        save(step + 1)
        time.sleep(chance.uniform(0, 0.06))
        process = checkpointer._background.writer._process
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            checkpointer.wait()
        except stratagem.errors.CheckpointError:
            reported += 1
        reader = checkpointer.open(path)
        read = {key: torch.empty(500_000) for key in weights}
        reader.read(read)
        at = reader.state["step"]
        new += at == step + 1
        torn += at not in (step, step + 1) or any(bool((each != at).any()) for each in read.values())
    checkpointer.close()
    print(
        f"kills        {kills} of what writes: {reported} reported, {kills - new} former and {new} new checkpoints "
        f"left, {torn} torn",
        flush=True,
    )
    return not torn


def main() -> None:
    """Run both parts; exit with 1 where a checkpoint was torn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=1000, help="for each strategy")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        held = [compare(strategy, Path(folder), arguments.saves) for strategy in arguments.only]
        held.append(kill(Path(folder), arguments.kills, arguments.seed))
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
