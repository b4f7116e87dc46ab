"""A fit that is asked to stop saves between two steps, exits with 75, and goes on as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line
from stratagem_launch import Preempted
from stratagem_trainer.saving.find_checkpoint import job_of

import stratagem
from stratagem.errors import CheckpointError, ConfigError
from tests.soak.hangs import HANGS, TORCHRUN, plant
from tests.soak.signals import Interruptions


class Signalled(Line):
    """Sends its process a signal, once, in a step or in a batch of the validation."""

    def __init__(
        self, step: int | None = None, batch: int | None = None, number: int = signal.SIGUSR1
    ) -> None:
        super().__init__(dropout=0.3)
        self.step, self.batch, self.number = step, batch, number

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == self.step:
            signal.raise_signal(self.number)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.batch and self.trainer.global_step > 0:
            signal.raise_signal(self.number)
        super().validation_step(batch, batch_idx)


@pytest.fixture(autouse=True)
def _default_handler():
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR1, before)


def trainer(folder: Path, **more: Any) -> stratagem.Trainer:
    given = {
        "strategy": "single",
        "accelerator": "cpu",
        "max_epochs": 2,
        "seed": 3,
        "enable_progress_bar": False,
    }
    return stratagem.Trainer(**{**given, "run_dir": folder / "run", "accumulate_grad_batches": 2, **more})


def weights(module: Line) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in module.parameters()])


@pytest.mark.parametrize(
    ("where", "step"),
    [({"step": 4}, 3), ({"batch": 2}, 6)],
    ids=["in the middle of an accumulation window", "in a validation"],
)
def test_it_goes_on_bitwise(where: dict[str, int], step: int, tmp_path: Path) -> None:
    whole = Line(dropout=0.3)
    trainer(tmp_path / "whole").fit(whole)
    with pytest.raises(Preempted) as stopped:
        trainer(tmp_path).fit(Signalled(**where))
    assert (stopped.value.code, stopped.value.reason, stopped.value.step) == (75, "SIGUSR1", step)
    assert stopped.value.path == str(tmp_path / "run" / "checkpoints" / f"preempted-step={step}")
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    resumed = Line(dropout=0.3)
    again = trainer(tmp_path)
    again.fit(resumed, ckpt_path="auto")
    assert torch.equal(weights(whole), weights(resumed))
    assert again.global_step == 12
    # What was saved for going on isn't kept beside what the finished run keeps.
    assert not list((tmp_path / "run/checkpoints").glob("preempted-*"))
    rows = [(tmp_path / name / "run/metrics.csv").read_text() for name in ("whole", ".")]
    assert rows[0] == rows[1]


class SignalAt(stratagem.Callback):
    """Sends its process a signal in one of its hooks, in the epoch of that index."""

    def __init__(self, hook: str, epoch: int) -> None:
        def signalled(trainer: Any, *args: Any) -> None:
            if trainer.current_epoch == epoch:
                signal.raise_signal(signal.SIGUSR1)

        setattr(self, hook, signalled)


@pytest.mark.parametrize(
    ("hook", "step"), [("on_train_epoch_end", 6), ("on_train_start", 0), ("on_train_epoch_start", 1)]
)
def test_a_stop_between_epochs_goes_on_bitwise(hook: str, step: int, tmp_path: Path) -> None:
    whole, resumed = Line(dropout=0.3), Line(dropout=0.3)
    trainer(tmp_path / "whole").fit(whole)
    last = tmp_path / "run/checkpoints/last"
    # The second run stops again before it has made a step.
    for stops in (SignalAt(hook, 0), SignalAt("on_train_start", step // 6)):
        with pytest.raises(Preempted) as stopped:
            trainer(tmp_path, callbacks=stops).fit(Line(dropout=0.3), ckpt_path="auto")
        assert os.path.realpath(last) == os.path.realpath(stopped.value.path)
        assert stopped.value.step == step
        torch.manual_seed(999)  # what the process drew meanwhile doesn't matter
        torch.rand(7)
    trainer(tmp_path).fit(resumed, ckpt_path=last)
    assert resumed.seen == whole.seen[step * 8 :]
    assert torch.equal(weights(whole), weights(resumed))


def test_last_names_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    whole, resumed = Line(dropout=0.3), Line(dropout=0.3)
    trainer(tmp_path / "whole").fit(whole)
    # One folder is elsewhere, and one can't have links.
    elsewhere = stratagem.ModelCheckpoint(dirpath=tmp_path / "elsewhere")
    taken = stratagem.ModelCheckpoint(dirpath=tmp_path / "taken", filename="{step}")
    (tmp_path / "taken/last").mkdir(parents=True)
    with pytest.raises(Preempted):
        trainer(tmp_path, callbacks=[elsewhere, taken]).fit(Stopped())
    assert os.path.realpath(tmp_path / "elsewhere/last").endswith("checkpoints/preempted-step=9")
    assert (tmp_path / "taken/last/manifest.json").exists()
    for folder in ("elsewhere", "taken"):
        again = trainer(tmp_path, callbacks=stratagem.ModelCheckpoint(dirpath=tmp_path / folder))
        again.fit(resumed, ckpt_path=tmp_path / folder / "last")
        assert torch.equal(weights(whole), weights(resumed))
    # Resumed where nothing is left to do: `last` doesn't name what is removed then.
    with pytest.raises(Preempted):
        trainer(tmp_path / "over", max_epochs=2, callbacks=SignalAt("on_train_epoch_end", 0)).fit(Line())
    trainer(tmp_path / "over", max_epochs=1).fit(Line(), ckpt_path="auto")
    assert (tmp_path / "over/run/checkpoints/last/manifest.json").exists()


class Stopped(Line):
    """Its process gets a signal in the second epoch."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.current_epoch == 1 and batch_idx == 5:
            signal.raise_signal(signal.SIGUSR1)
        return super().training_step(batch, batch_idx)


def test_a_time_limit_stops_it_in_time(tmp_path: Path) -> None:
    class Slow(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.1)
            return super().training_step(batch, batch_idx)

    # A second after it began: ten minutes before the limit, and minutes before its last epoch.
    with pytest.raises(Preempted) as stopped:
        trainer(tmp_path, max_epochs=200, time_limit=601, grace_period_s=600).fit(Slow())
    assert stopped.value.reason == "the time limit"


def flip_a_bit(checkpoint: Path) -> None:
    file = max(checkpoint.glob("tensors-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)


def test_auto_goes_on_from_the_newest_that_is_unchanged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, resumed = Line(dropout=0.3), Line(dropout=0.3)
    trainer(tmp_path / "whole", max_epochs=3).fit(whole)
    every = stratagem.ModelCheckpoint(save_top_k=-1, filename="{epoch}")
    trainer(tmp_path, callbacks=[every]).fit(Line(dropout=0.3))
    first, second = sorted((tmp_path / "run/checkpoints").glob("epoch=*"))
    os.utime(first, (1, 1))
    flip_a_bit(second)
    trainer(tmp_path, max_epochs=3).fit(resumed, ckpt_path="auto")
    assert torch.equal(weights(whole), weights(resumed))
    said = capfd.readouterr().err
    assert f"skipped     {second}: " in said
    assert "aren't what was written" in said
    assert f"resuming    from {first}" in said


class FlipsAndFails(Line):
    """Rank 1 damages the newest checkpoint of the first attempt, and fails."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def on_train_start(self) -> None:
        with open(os.path.join(self.folder, f"began-{self.trainer.runtime.rank}"), "a") as file:
            file.write(f"{self.trainer.global_step} ")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        mark = Path(self.folder, "failed")
        if self.trainer.global_step >= 5 and self.trainer.runtime.rank == 1 and not mark.exists():
            mark.touch()
            saved = sorted(Path(self.folder, "checkpoints").glob("step=*"))
            assert [each.name for each in saved] == ["step=2", "step=4"]
            flip_a_bit(saved[-1])
            raise ValueError("as planned")
        return super().training_step(batch, batch_idx)


def test_a_restart_goes_on_from_the_newest_that_is_unchanged(tmp_path: Path) -> None:
    every = stratagem.ModelCheckpoint(
        dirpath=str(tmp_path / "checkpoints"),
        save_top_k=-1,
        filename="{step}",
        every_n_train_steps=2,
        save_last=False,
    )
    how = {"strategy": "ddp", "devices": 2, "max_restarts": 1, "max_steps": 6, "accumulate_grad_batches": 1}
    trainer(tmp_path, callbacks=[every], **how).fit(FlipsAndFails(str(tmp_path)))
    assert [(tmp_path / f"began-{rank}").read_text() for rank in (0, 1)] == ["0 2 ", "0 2 "]


def test_auto_begins_where_there_is_nothing_and_needs_a_folder(tmp_path: Path) -> None:
    first = trainer(tmp_path, max_epochs=1)
    first.fit(Line(), ckpt_path="auto")
    assert first.global_step == 6
    with pytest.raises(CheckpointError, match=r"fit got ckpt_path='auto'.*set run_dir \(--run-dir\)"):
        trainer(tmp_path, run_dir=None).fit(Line(), ckpt_path="auto")
    with pytest.raises(CheckpointError, match=r"test got ckpt_path='auto'.*pass a checkpoint's folder"):
        trainer(tmp_path).test(Line(), ckpt_path="auto")


def test_a_slurm_job_is_requeued_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stands_for_slurm = tmp_path / "scontrol"
    stands_for_slurm.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    stands_for_slurm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    settings = {"run_dir": None, "default_root_dir": tmp_path}
    with pytest.raises(Preempted):
        trainer(tmp_path, **settings).fit(Signalled(step=4))
    run_dir = tmp_path / "runs" / "slurm-77-Signalled"
    assert job_of(str(run_dir)) == "77"
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
    assert "requeued    job 77, which resumes automatically" in capfd.readouterr().err
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    again = trainer(tmp_path, **settings)
    again.fit(Signalled())
    assert again.run_dir == str(run_dir)
    assert f"resuming    from {run_dir}/checkpoints/preempted-step=3" in capfd.readouterr().err
    # Cancelling a job sends SIGTERM.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(Preempted):
        trainer(tmp_path, run_dir=tmp_path / "cancelled").fit(Signalled(step=4, number=signal.SIGTERM))
    signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "asked").read_text() == "requeue 77\n"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"time_limit": "soon"},
            "time_limit='soon' is not a time above 0: pass a number of seconds, 'HH:MM:SS'",
        ),
        ({"time_limit": -1}, "time_limit"),
        (
            {"time_limit": "1:99:99"},
            "time_limit='1:99:99' has 99 minutes and 99 seconds: each must be at most 59",
        ),
        ({"grace_period_s": 0}, "grace_period_s=0 must be a number of seconds above 0"),
        ({"grace_period_s": float("nan")}, "grace_period_s=nan"),
        ({"stop_signals": "SIGKILL"}, "stop_signals has 'SIGKILL'; allowed are SIGTERM, SIGHUP"),
        ({"requeue": 2}, "requeue=2 must be True or False"),
        ({"step_timeout_s": -3}, "step_timeout_s=-3 must be a number of seconds above 0"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        stratagem.Trainer(**wrong)
    assert said in str(refused.value)


@pytest.mark.long
@pytest.mark.serial
def test_random_signals_to_random_processes_lose_nothing(tmp_path: Path) -> None:
    outcome = Interruptions("ddp", tmp_path, count=480, seed=1).interrupt(1, longest_s=0.5)
    assert outcome.problems == []
    assert len(outcome.exit_s) == 1


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["wrong_shape", "stuck_filesystem"])
def test_a_planted_hang_is_laid_to_its_rank_and_place(kind: str, tmp_path: Path) -> None:
    (hang,) = (hang for hang in HANGS if hang.kind == kind)
    found = plant(hang, tmp_path, timeout_s=6)
    assert found.problem is None, found


@pytest.mark.long
@pytest.mark.serial
def test_under_torchrun_too_a_planted_hang_is_laid_to_its_rank_and_place(tmp_path: Path) -> None:
    (hang,) = (hang for hang in HANGS if hang.kind == "stuck_filesystem")
    found = plant(hang, tmp_path, timeout_s=6, launcher=TORCHRUN)
    assert found.problem is None, found
    assert found.after_s is not None
