"""Which folders a run takes, and that it is alone there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small import Line

import stratagem
from stratagem.errors import ConfigError

FIT = """
import sys, time
import stratagem
from small import Line

class Waits(stratagem.Callback):
    def on_train_batch_end(self, trainer, *arguments):
        if trainer.is_main:
            print("fits", flush=True)
        time.sleep(60)

if __name__ == "__main__":
    stratagem.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_steps=2, run_dir=sys.argv[1],
        enable_progress_bar=False, callbacks=Waits(),
    ).fit(Line)
"""


def trainer(run_dir: Any, **how: Any) -> stratagem.Trainer:
    return stratagem.Trainer(
        strategy="single", accelerator="cpu", max_steps=2, enable_progress_bar=False, run_dir=run_dir, **how
    )


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_second_run_in_a_folder_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    run_dir, script = tmp_path / "run", tmp_path / "fit.py"
    script.write_text(FIT)
    support = Path(__file__).parents[3] / "tests/support"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(support)]),
    }
    command = [sys.executable, str(script), str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "fits\n"
        before = listing(tmp_path)
        with pytest.raises(
            ConfigError, match=rf"another run writes in {run_dir} \(process \d+ on .*\): name"
        ):
            trainer(run_dir).fit(Line())
        assert listing(tmp_path) == before
        first.send_signal(signal.SIGKILL)
    for _ in range(100):  # the workers of a killed process end within seconds
        try:
            trainer(run_dir).fit(Line())
            break
        except ConfigError:
            signal.sigtimedwait([], 0.2)
    else:
        pytest.fail("the lock outlived its holder")
    assert ".lock" not in listing(run_dir)
    trainer(run_dir).fit(Line())


def test_a_lock_taken_since_is_found_by_the_run_itself(tmp_path: Path) -> None:
    program = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.lockf(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )

    class Late(Line):
        def configure_optimizers(self) -> Any:
            (tmp_path / "run").mkdir()
            command = [sys.executable, "-c", program, str(tmp_path / "run" / ".lock")]
            self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert self.holder.stdout is not None
            self.holder.stdout.readline()
            return super().configure_optimizers()

    module = Late()
    with pytest.raises(ConfigError, match="another run writes in"):
        trainer(tmp_path / "run").fit(module)
    with module.holder as holder:
        assert holder.stdin is not None
        holder.stdin.close()
    assert listing(tmp_path / "run") == [".lock"]


@pytest.mark.parametrize("url", ["s3://bucket/run", "file:///tmp/run", "memory://run"])
def test_a_url_is_refused(url: str) -> None:
    with pytest.raises(
        ConfigError, match=f"run_dir='{url}' is a URL, but metrics and settings are written to a folder"
    ):
        trainer(url)
    assert not os.path.exists(url.partition("/")[0])


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="run_dir is empty"):
        trainer("")


class Unstarted(Line):
    def train_dataloader(self) -> Any:
        raise AssertionError("the run began")


def refused(run_dir: Path | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(run_dir).fit(Unstarted())


def test_a_folder_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for run_dir in (tmp_path / "file", tmp_path / "file" / "run"):
        refused(run_dir, f"the run folder {run_dir} can't be made: {tmp_path}/file is a file")
    refused(tmp_path / ("x" * 300), "can't be used: File name too long")
    assert listing(tmp_path) == ["file"]


def test_a_folder_that_may_not_be_written_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere but there.
    refused(Path("/proc/run"), "the run folder /proc/run can't be written: .* in /proc; name another")
    monkeypatch.chdir("/proc")
    refused(None, "the run folder /proc/runs can't be written")


def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    for _ in range(3):
        trainer(None).fit(Line())
    assert sorted(os.listdir("runs")) == ["now-Line", "now-Line-1", "now-Line-2"]


def test_a_run_that_finds_its_folder_made_in_between_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    make, others = os.makedirs, ["now-Line"]

    def makes_anothers_first(path: Any, *arguments: Any, **options: Any) -> None:
        if others and str(path).endswith(others[0]):
            make(tmp_path / "runs" / others.pop())
        make(path, *arguments, **options)

    monkeypatch.setattr("os.makedirs", makes_anothers_first)
    trainer(None).fit(Line())
    assert sorted(os.listdir("runs")) == ["now-Line", "now-Line-1"]
    assert os.listdir("runs/now-Line") == []


def test_folders_for_returned_weights_of_killed_processes_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratagem_trainer.stage.collect_results import destination

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = (
        "import os, sys, tempfile, time; tempfile.tempdir = sys.argv[1]\n"
        "from small import Line; from stratagem_trainer.stage.collect_results import destination\n"
        "with destination(Line()): print('made', flush=True); time.sleep(60)"
    )
    support = Path(__file__).parents[3] / "tests/support"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(support)]),
    }
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "made\n"
        (theirs,) = tmp_path.iterdir()
        with destination(Line()):
            assert theirs.exists()  # in use
        other.kill()
    with destination(Line()):
        assert not theirs.exists()
    assert listing(tmp_path) == []
