"""Each profiler on a real fit, and that none costs nothing."""

import json

import pytest
from callback_nets import Net, trainer
from stratagem_trainer.callbacks import LambdaCallback
from stratagem_trainer.profilers import AdvancedProfiler, PassThroughProfiler, PyTorchProfiler, SimpleProfiler
from stratagem_trainer.profilers.pytorch import step_table

from stratagem.errors import ConfigError


class Own(Net):
    def training_step(self, batch, batch_idx):
        with self.trainer.profiler.profile("of my own"):
            return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("strategy", "devices"), [("single", 1), ("ddp", 2)])
def test_simple_has_a_table_of_hooks_and_phases_on_each_rank(tmp_path, strategy, devices):
    module = Own(8 // devices)
    run = trainer(strategy, tmp_path, devices=devices, profiler="simple", max_epochs=2)
    run.fit(module)
    for rank in range(devices):
        head, columns, *rows = (tmp_path / f"profile-fit-rank{rank}.txt").read_text().splitlines()
        assert f"rank {rank}" in head
        assert columns.split() == ["part", "mean", "(s)", "calls", "total", "(s)", "share"]
        calls = {row[:-38].strip(): int(row[-28:-20]) for row in rows}
        assert (
            calls["of my own"] == calls["training_step"] == calls["backward"] == calls["optimizer_step"] == 8
        )
        assert calls["evaluation_step"] == 8
        assert calls["data wait"] >= 16
        assert devices == 1 or calls["communication: all_gather"] >= 2
    assert "training_step" not in vars(module)


def test_advanced_tells_functions_of_each_part(tmp_path, capsys):
    profiler = AdvancedProfiler(tmp_path / "files", "mine", line_count_restriction=5, dump_stats=True)
    hook = LambdaCallback(on_train_end=lambda trainer, module: sorted([2, 1]))
    trainer("single", tmp_path / "run", hook, profiler=profiler, max_epochs=1).fit(Net())
    text = (tmp_path / "files" / "mine-fit-rank0.txt").read_text()
    assert "training_step\n" in text
    assert "function.on_train_end" in text
    assert "cumulative time" in text
    assert (tmp_path / "files" / "mine-fit-rank0-training_step.prof").exists()
    assert "profile of fit, rank 0" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pytorch_leaves_a_trace_on_each_rank_and_says_where_the_step_went(tmp_path):
    trainer("ddp", tmp_path, devices=2, profiler="pytorch", max_epochs=2).fit(Net(4))
    for rank in range(2):
        trace = json.loads((tmp_path / f"profile-fit-rank{rank}.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"data wait", "training_step", "backward", "optimizer_step"} <= names
        lines = (tmp_path / f"profile-fit-rank{rank}.txt").read_text().splitlines()
        assert [line.split("  ")[1] for line in lines[2:4]] == ["data wait", "communication"]
        assert float(lines[3].split()[1]) > 0


def test_the_step_is_divided_into_phases():
    lines = step_table(
        {"ProfilerStep#1": 4000.0, "data wait": 1000.0, "backward": 1000.0, "c10d::x": 500.0}, 2
    )
    assert [line.split()[-2:] for line in lines[1:]] == [
        ["0.500", "25.0%"],
        ["0.250", "12.5%"],
        ["0.500", "25.0%"],
        ["1.000", "50.0%"],
    ]


def test_without_a_profiler_nothing_is_measured_and_names_are_checked(tmp_path):
    run = trainer("single", tmp_path, max_epochs=1)
    assert isinstance(run.profiler, PassThroughProfiler)
    with run.profiler.profile("x"):
        pass
    with pytest.raises(ConfigError, match="profiler='fast' must be one of 'simple', 'advanced', 'pytorch'"):
        trainer("single", tmp_path, profiler="fast")
    simple = SimpleProfiler(extended=False)
    simple.begin("fit", 1, None)
    with simple.profile("a"):
        pass
    assert simple.summary().splitlines()[1].startswith("  a ")
    with pytest.raises(ConfigError, match="without start"):
        simple.stop("b")
    short = PyTorchProfiler(row_limit=0)
    short.begin("fit", 1, None)
    short.finish()
    assert "no step was recorded" in short.summary()
