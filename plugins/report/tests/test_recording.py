"""What a recorded run leaves: every nanosecond in one phase, and the same numbers as without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from stratagem_report.goodput import goodput
from stratagem_report.phases import PHASES
from stratagem_report.reading import RunRecord, read_run
from stratagem_report.summary import summarize
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem.errors import ConfigError


class Net(stratagem.Module):
    def __init__(self, samples: int = 64, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.samples, self.optimizer = samples, optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(0.002)
        self.log("val_loss", self.net(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        data = torch.arange(8.0 * self.samples).reshape(self.samples, 8) / 512
        return DataLoader(TensorDataset(data), batch_size=4)

    val_dataloader = train_dataloader


class Manual(Net):
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.net(batch[0]).square().mean())
        optimizer.step()


class OneIsSlow(Net):
    """Rank 1 takes 130 ms more than the 20 ms of the others: more than a busy machine adds to any rank."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        time.sleep(0.150 if self.global_rank == 1 else 0.020)
        return super().training_step(batch, batch_idx)


class OneComputesMore(Net):
    """Rank 1 computes for 72 ms, and the others for 24 ms."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        until = time.thread_time() + (0.072 if self.global_rank == 1 else 0.024)
        while time.thread_time() < until:
            pass
        return super().training_step(batch, batch_idx)


class Dies(Net):
    """Rank 1 dies in the tenth step of the first attempt."""

    def __init__(self, marker: str) -> None:
        super().__init__(samples=128)
        self.marker = marker

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if not os.path.exists(self.marker):
            time.sleep(0.15)  # a killed process loses what came within its last second
            if batch_idx == 10 and self.global_rank == 1:
                Path(self.marker).touch()
                os._exit(9)
        return super().training_step(batch, batch_idx)


def fit(folder: Path, module: Any = None, plugins: Any = ("record",), **how: Any) -> stratagem.Trainer:
    given = {"strategy": "single", "accelerator": "cpu", "max_epochs": 1, "run_dir": folder, "seed": 1, **how}
    trainer = stratagem.Trainer(plugins=list(plugins), enable_progress_bar=False, **given)
    trainer.fit(module or Net())
    return trainer


def seconds(run: RunRecord, rank: int = 0) -> dict[str, float]:
    rows = run.attempts[-1][rank].rows
    return {name: sum(row.ns[phase] for row in rows) / 1e9 for phase, name in enumerate(PHASES)}


class Stopped(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)


def test_a_run_that_was_asked_to_stop_is_no_failed_one(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        fit(tmp_path, Stopped())
    assert summarize(read_run(str(tmp_path))).outcome == "was asked to stop, and saved"


def test_each_moment_of_a_run_is_in_one_phase(tmp_path: Path) -> None:
    at_steps: list[float] = []

    class Noted(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            at_steps.append(time.perf_counter())
            return super().training_step(batch, batch_idx)

    before = time.perf_counter()
    module = Noted()
    fit(tmp_path, module, max_epochs=2)
    took = time.perf_counter() - before
    run = read_run(str(tmp_path))
    ((rank,),) = run.attempts
    assert rank.steps == 32
    assert sum(row.samples for row in rank.rows) == 128
    at = 0
    for row in rank.rows:
        at += row.total_ns
        assert row.end_ns == at
    assert rank.wall_ns == at
    assert at_steps[-1] - at_steps[0] < rank.wall_ns / 1e9 < took
    found = seconds(run)
    assert (
        min(found[name] for name in ("data", "forward", "backward", "optimizer", "checkpoint", "start")) > 0
    )
    assert found["validation"] > 2 * 16 * 0.002
    assert found["forward and backward"] == 0
    assert goodput(run).wall_s == pytest.approx(rank.wall_ns / 1e9)
    assert {row[0]: row[1] for row in rank.header["plan"]}["strategy"] == "single"
    assert summarize(run).outcome == "ended well"


def test_the_numbers_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    recorded, plain = Net(), Net()
    fit(tmp_path / "recorded", recorded)
    fit(tmp_path / "plain", plain, plugins=())
    assert not (tmp_path / "plain/record").exists()
    for ours, theirs in zip(recorded.parameters(), plain.parameters()):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("module", "how", "steps"),
    [
        (Manual, {}, 16),
        (lambda: Net(optimizer=torch.optim.LBFGS), {}, 16),
        (Net, {"accumulate_grad_batches": 4}, 4),
        (Net, {"max_steps": 5}, 5),
    ],
)
def test_every_way_to_step_is_counted(tmp_path: Path, module: Any, how: Any, steps: int) -> None:
    fit(tmp_path, module(), **how)
    run = read_run(str(tmp_path))
    ((rank,),) = run.attempts
    assert rank.steps == steps
    found = seconds(run)
    assert min(found["forward"], found["backward"], found["optimizer"]) > 0


def test_a_folder_elsewhere_and_one_that_cant_be_written(tmp_path: Path) -> None:
    def loop(runtime: stratagem.Runtime) -> None:
        module = Net()
        runtime.setup(module, module.configure_optimizers())

    (tmp_path / "record").write_text("a file in its place")
    for run_dir, why in (("s3://bucket/run", "which is a URL"), (str(tmp_path), "can't be written into")):
        runtime = stratagem.Runtime("single", "cpu", plugins=["record"], run_dir=run_dir)
        with pytest.raises(ConfigError, match=why):
            runtime.launch(loop, quiet=True)


def test_a_own_loop(tmp_path: Path) -> None:
    def loop(runtime: stratagem.Runtime) -> None:
        module = Net()
        wrapped, optimizer = runtime.setup(module, module.configure_optimizers())
        for batch in runtime.dataloader(module.train_dataloader()):
            runtime.backward(wrapped(batch[0]))
            optimizer.step()
            optimizer.zero_grad()

    Net.forward = lambda self, x: self.net(x).square().mean()
    runtime = stratagem.Runtime("single", "cpu", plugins=["record"], run_dir=str(tmp_path))
    runtime.launch(loop, quiet=True)
    run = read_run(str(tmp_path))
    assert run.attempts[0][0].steps == 16
    found = seconds(run)
    assert min(found["data"], found["forward"], found["backward"], found["optimizer"]) > 0
    with pytest.raises(
        ConfigError, match="writes into the run's folder, and this run has none: pass a folder"
    ):
        stratagem.Runtime("single", "cpu", plugins=["record"]).launch(loop, quiet=True)


def test_an_evaluation_leaves_nothing(tmp_path: Path) -> None:
    trainer = stratagem.Trainer(
        strategy="single", accelerator="cpu", plugins=["record"], run_dir=tmp_path, enable_progress_bar=False
    )
    trainer.validate(Net())
    assert not (tmp_path / "record").exists()


def test_a_slow_rank_is_named_within_20_steps_while_it_trains(tmp_path: Path) -> None:
    target = f"{__file__}:OneIsSlow"
    words = [
        "fit",
        target,
        "--strategy",
        "ddp",
        "--accelerator",
        "cpu",
        "--devices",
        "2",
        "--max-steps",
        "24",
    ]
    more = ["--use", "record", "--run-dir", str(tmp_path / "run"), "--set", "model.samples=240"]
    command = [sys.executable, "-m", "stratagem", *words, *more]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "slower than the others at step" in line]
    assert [line for line in said if line.startswith("rank 1 is ")], done.stderr
    summary = summarize(read_run(str(tmp_path / "run")))
    slow = next(event for event in summary.slow_events if event["rank"] == 1)
    assert int(str(slow["at_step"])) <= 20
    assert [slow.rank for slow in summary.slow] == [1]
    # The other one waits for it, at the end of its backward.
    (ranks,) = summary.run.attempts
    wait = PHASES.index("communication")
    waits = [median(row.ns[wait] for row in rank.rows if row.steps) for rank in ranks]
    assert waits[0] > waits[1]


def test_where_all_wait_in_the_forward_processor_time_names_it(tmp_path: Path) -> None:
    fit(tmp_path, OneComputesMore(samples=320), strategy="fsdp", devices=2, max_steps=24)
    assert 1 in [event["rank"] for event in summarize(read_run(str(tmp_path))).slow_events]


def test_a_restart_is_seen_with_the_work_that_it_cost(tmp_path: Path) -> None:
    how = {"strategy": "ddp", "devices": 2, "max_restarts": 1}
    fit(tmp_path, Dies(str(tmp_path / "marker")), **how)
    run = read_run(str(tmp_path))
    first, second = run.attempts
    assert first[1].end is None
    assert [rank.steps for rank in second] == [16, 16]
    found = goodput(run)
    assert min(found.parts["restarts"], found.parts["lost work"], found.parts["compute"]) > 0
    assert "ended well after 1 restart" in summarize(run).outcome
