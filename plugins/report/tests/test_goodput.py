"""Parts that add up to the wall time."""

from pathlib import Path

import pytest
from records import row, write_rank
from stratagem_report.goodput import goodput
from stratagem_report.reading import read_run

START = row(0, 0, start=1000)
STEP = row(data=1, forward=3, backward=4, communication=1, optimizer=1)


def test_parts_are_the_mean_over_ranks_and_add_up(tmp_path: Path) -> None:
    for rank in range(2):
        steps = [
            START,
            STEP,
            row(data=2, forward=2, backward=2, validation=100, checkpoint=50, load=7, other=9),
        ]
        write_rank(tmp_path, [*steps, row(0, 0, end=20)], rank=rank, world_size=2)
    found = goodput(read_run(str(tmp_path)))
    assert found.wall_s == pytest.approx(1.202)
    assert found.parts["compute"] == pytest.approx(0.012)
    assert found.parts["waiting for data"] == pytest.approx(0.003)
    assert found.parts["start and end"] == pytest.approx(1.020)
    assert found.parts["validation"] == pytest.approx(0.1)
    assert found.parts["checkpoints"] == pytest.approx(0.05)
    assert found.share == pytest.approx(0.012 / 1.202)


def test_work_that_was_done_again_is_lost_and_the_gap_is_a_restart(tmp_path: Path) -> None:
    saved = {"event": "saved", "path": "last", "step": 3}
    write_rank(tmp_path, [START, *[STEP] * 5], end=None, events=[saved])
    began = 1_000_000.0 + 1.05 + 4
    loaded = {"event": "loaded", "path": "last", "step": 0}
    write_rank(
        tmp_path, [row(0, 0, start=500, load=500), *[STEP] * 7], attempt=1, began=began, events=[loaded]
    )
    found = goodput(read_run(str(tmp_path)))
    assert found.wall_s == pytest.approx(1.05 + 4 + 1 + 0.07)
    assert found.parts["lost work"] == pytest.approx(0.02)
    assert found.parts["restarts"] == pytest.approx(5.0)
    assert found.parts["compute"] == pytest.approx(0.08 * 10 / 10)


def test_without_a_checkpoint_all_work_before_the_restart_is_lost(tmp_path: Path) -> None:
    write_rank(tmp_path, [START, *[STEP] * 5], end="failed")
    write_rank(tmp_path, [START, *[STEP] * 5], attempt=1, began=1_000_001.05)
    found = goodput(read_run(str(tmp_path)))
    assert found.parts["lost work"] == pytest.approx(0.05)
    assert found.parts["restarts"] == pytest.approx(1.0)


def test_time_between_two_runs_in_one_folder_belongs_to_neither(tmp_path: Path) -> None:
    write_rank(tmp_path, [START, STEP])
    write_rank(tmp_path, [START, STEP], attempt=1, began=2_000_000.0)
    found = goodput(read_run(str(tmp_path)))
    assert found.wall_s == pytest.approx(2.02)
    assert found.parts["restarts"] == found.parts["lost work"] == 0
