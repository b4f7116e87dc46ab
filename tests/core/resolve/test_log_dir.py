"""`log_dir` is honoured or refused, and never ignored."""

import pytest

from stratagem import CombinationError, ConfigError, RunConfig, Runtime
from stratagem.resolve.run import assemble


def say(runtime):
    print(f"said by {runtime.rank}")


def test_what_workers_print_is_kept(tmp_path):
    Runtime(strategy="ddp", accelerator="cpu", devices=2, log_dir=str(tmp_path / "logs")).launch(
        say, quiet=True
    )
    kept = [(tmp_path / f"logs/attempt_0/{rank}/stdout.log").read_text() for rank in (0, 1)]
    assert kept == ["said by 0\n", "said by 1\n"]


def test_a_run_in_the_calling_process_refuses_it(tmp_path):
    run = assemble(RunConfig(strategy="single", accelerator="cpu", log_dir=str(tmp_path)))
    with pytest.raises(CombinationError, match="this run is in the calling process: leave it out"):
        run.launcher()


def test_a_file_in_its_place_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("mine")
    runtime = Runtime(strategy="ddp", accelerator="cpu", devices=2, log_dir=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"log_dir=.*can't be created \(File exists\): name another folder"):
        runtime.launch(say, quiet=True)
    assert (tmp_path / "file").read_text() == "mine"
