import csv
import os
import signal
import subprocess
import sys
from textwrap import dedent

import pytest
from stratagem_trainer.loggers import CSVLogger, Row

from stratagem.errors import ConfigError, UsageError


@pytest.fixture
def logger(tmp_path):
    made = CSVLogger()
    made.open(str(tmp_path), {}, 0)
    return made


def resume(folder, step, **arguments):
    logger = CSVLogger(**arguments)
    logger.open(str(folder), {}, step)
    return logger


def read(folder):
    """The file as (step, {metric: value}) in order."""
    with open(folder / "metrics.csv", newline="") as file:
        return [
            (int(line["step"]), {k: float(v) for k, v in line.items() if v and k not in ("step", "epoch")})
            for line in csv.DictReader(file)
        ]


def test_step_epoch_then_a_column_per_metric(logger, tmp_path):
    logger.write([Row(1, 0, {"loss": 0.5, "acc": 1}), Row(2, 0, {"loss": 0.1})])
    logger.close()
    assert (tmp_path / "metrics.csv").read_text() == "step,epoch,loss,acc\n1,0,0.5,1.0\n2,0,0.1,\n"


def test_a_metric_that_comes_later_loses_nothing(logger, tmp_path):
    logger.write([Row(1, 0, {"a": 1.0})])
    logger.write([Row(2, 0, {"a": 2.0}), Row(2, 0, {"b": 3.0})])
    logger.write([Row(3, 1, {"c": 4.0, "a": 5.0})])
    logger.close()
    expected = [(1, {"a": 1.0}), (2, {"a": 2.0}), (2, {"b": 3.0}), (3, {"c": 4.0, "a": 5.0})]
    assert read(tmp_path) == expected
    assert os.listdir(tmp_path) == ["metrics.csv"]


def test_values_keep_all_their_digits_and_names_may_be_anything(logger, tmp_path):
    values = {'a,"b"': 1 / 3, "line\nbreak": float("nan"), "é": float("-inf"), "big": 2**60}
    logger.write([Row(1, 0, values)])
    logger.close()
    again = resume(tmp_path, 1)
    again.write([Row(2, 0, {"new": 1.0})])
    again.close()
    (_, read_back), later = read(tmp_path)
    assert str(read_back) == str({name: float(value) for name, value in values.items()})
    assert later == (2, {"new": 1.0})


def test_rows_wait_for_a_second_or_for_enough_of_them(tmp_path):
    slow = resume(tmp_path, 0, flush_every_s=3600.0, buffer_rows=3)
    slow.write([Row(1, 0, {"a": 1.0})])
    slow.write([Row(2, 0, {"a": 1.0})])
    assert read(tmp_path) == []
    slow.write([Row(3, 0, {"a": 1.0})])
    assert len(read(tmp_path)) == 3
    slow.write([Row(4, 0, {"a": 1.0})])
    slow.flush()
    assert len(read(tmp_path)) == 4
    eager = resume(tmp_path, 4, flush_every_s=0.0)
    eager.write([Row(5, 0, {"a": 1.0})])
    assert len(read(tmp_path)) == 5


def test_closing_after_a_failure_writes_what_is_held_back(logger, tmp_path):
    logger.write([Row(1, 0, {"a": 1.0})])
    logger.close(failed=True)
    assert len(read(tmp_path)) == 1


def test_no_file_without_metrics(logger, tmp_path):
    logger.write([Row(1, 0, {})])
    logger.close()
    assert os.listdir(tmp_path) == []


def test_a_resumed_run_goes_on_without_repeating_rows_of_the_killed_one(logger, tmp_path):
    logger.write([Row(step, 0, {"loss": float(step)}) for step in range(1, 6)])
    logger.write([Row(3, 0, {"val": 0.3})])
    logger.close()
    resumed = resume(tmp_path, 3)
    # The evaluation at the checkpoint's step is done again; what is new in it is kept.
    resumed.write([Row(3, 0, {"val": 0.3}), Row(3, 0, {"val": 0.3, "extra": 1.0}), Row(4, 1, {"loss": 4.5})])
    resumed.close()
    expected = [(1, {"loss": 1.0}), (2, {"loss": 2.0}), (3, {"loss": 3.0}), (3, {"val": 0.3})]
    assert read(tmp_path) == [*expected, (3, {"extra": 1.0}), (4, {"loss": 4.5})]


def test_an_evaluation_of_an_old_checkpoint_drops_nothing(logger, tmp_path):
    logger.write([Row(step, 0, {"loss": float(step)}) for step in range(1, 6)])
    logger.close()
    evaluation = resume(tmp_path, None)
    evaluation.write([Row(2, 0, {"test_loss": 9.0})])
    evaluation.close()
    assert [step for step, _ in read(tmp_path)] == [1, 2, 3, 4, 5, 2]


def test_a_fresh_run_in_the_same_folder_starts_over(logger, tmp_path):
    logger.write([Row(1, 0, {"loss": 1.0})])
    logger.close()
    fresh = resume(tmp_path, 0)
    fresh.write([Row(1, 0, {"loss": 2.0})])
    fresh.close()
    assert read(tmp_path) == [(1, {"loss": 2.0})]


@pytest.mark.parametrize("torn", ["3,0,0.", "3,0", "3", "\0\0\0", "3,0,1.0\n4,0\n"])
def test_a_torn_end_is_cut_off(tmp_path, torn):
    (tmp_path / "metrics.csv").write_text("step,epoch,a,b\n1,0,1.0,\n2,0,2.0,3.0\n" + torn)
    logger = resume(tmp_path, None)
    logger.write([Row(5, 0, {"a": 5.0})])
    logger.close()
    assert read(tmp_path) == [(1, {"a": 1.0}), (2, {"a": 2.0, "b": 3.0}), (5, {"a": 5.0})]


def test_a_killed_process_loses_at_most_what_it_held_back(tmp_path):
    script = """
        import sys, time
        from stratagem_trainer.loggers import CSVLogger, Row
        logger = CSVLogger(flush_every_s=0.05)
        logger.open(sys.argv[1], {}, 0)
        step = 0
        while True:
            step += 1
            values = {"loss": 1 / 3} if step % 1000 else {"loss": 1 / 3, f"val{step}": 0.5}
            logger.write([Row(step, 0, values)])
            if step % 100 == 0:
                time.sleep(0.001)
            if step == 20_000:
                print("far enough", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "far enough\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    before = read(tmp_path)
    assert [step for step, _ in before] == list(range(1, len(before) + 1))
    assert len(before) >= 10_000
    assert all(values["loss"] == 1 / 3 for _, values in before)
    resumed = resume(tmp_path, 10_000)
    resumed.write([Row(10_001, 1, {"loss": 0.25})])
    resumed.close()
    assert read(tmp_path) == [*before[:10_000], (10_001, {"loss": 0.25})]


def test_a_file_of_something_else_is_left_as_it_is(tmp_path):
    (tmp_path / "metrics.csv").write_text("name,age\nx,1\n")
    with pytest.raises(UsageError, match="wasn't written by a CSVLogger"):
        resume(tmp_path, 0)
    assert (tmp_path / "metrics.csv").read_text() == "name,age\nx,1\n"


@pytest.mark.parametrize(
    "arguments",
    [
        {"filename": "a/b.csv"},
        {"filename": ""},
        {"flush_every_s": -1},
        {"flush_every_s": float("nan")},
        {"buffer_rows": 0},
    ],
)
def test_nonsense_is_refused(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=name):
        CSVLogger(**arguments)
