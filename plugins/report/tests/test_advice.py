"""Each rule of advice: what it says where its figure stands out, and that it says nothing otherwise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from records import row, write_rank
from stratagem_report import advice as rules
from stratagem_report.advice import advice
from stratagem_report.reading import read_run
from stratagem_report.summary import summarize

STEP = {"data": 1, "forward": 40, "backward": 50, "communication": 2, "optimizer": 5, "other": 2}
DDP = [["strategy", "ddp", ""]]


def advised(folder: Path, *ranks: Sequence[Any], **header: Any) -> list[str]:
    for rank, rows in enumerate(ranks):
        write_rank(folder, rows, rank=rank, world_size=len(ranks), **header)
    return [each.text for each in advice(summarize(read_run(str(folder))))]


def steps(count: int = 40, **changed: float) -> list[Any]:
    return [row(**{**STEP, **changed})] * count


def test_there_is_none_where_nothing_stands_out(tmp_path: Path) -> None:
    assert advised(tmp_path, [row(0, 0, start=500), *steps(), row(0, 0, end=200)]) == []


def test_most_of_the_time_was_start_and_end(tmp_path: Path) -> None:
    (said,) = advised(tmp_path, [row(0, 0, start=12_000), *steps(), row(0, 0, end=2180)])
    assert said.startswith("78 % of the time was start and end: 14.2 s, however long the run trains.")


def test_a_rank_that_waits_for_data_is_named_with_the_workers_that_it_needs(tmp_path: Path) -> None:
    (said,) = advised(tmp_path, steps(), steps(data=42.43))
    assert said.startswith("Rank 1 waits 30 % of each step for data (42.4 ms of 141 ms).")
    assert "num_workers=2." in said
    (said,) = advised(tmp_path / "more", steps(data=290))
    assert "num_workers=4." in said


def test_saves_that_block(tmp_path: Path) -> None:
    (said,) = advised(tmp_path, [*steps(44), row(0, 0, checkpoint=600)])
    assert said.startswith("Saves block 12 % of the time (600 ms).")
    assert "--set checkpoint.async=true" in said


def test_validation_that_takes_long(tmp_path: Path) -> None:
    (said,) = advised(tmp_path, [*steps(), row(0, 0, validation=4000)])
    assert said.startswith("Validation takes 50 % of the time (4.0 s).")


@pytest.mark.parametrize(("plan", "says"), [(DDP, True), ([["strategy", "fsdp", ""]], False)])
def test_ranks_that_wait_for_what_travels(tmp_path: Path, plan: list[list[str]], says: bool) -> None:
    (said,) = advised(tmp_path, steps(communication=98), steps(communication=98), plan=plan)
    assert said.startswith("Ranks wait 50 % of each step for each other. Send less:")
    assert ("--strategy ddp_bf16" in said) == says


def test_ranks_that_wait_for_a_slow_one(tmp_path: Path) -> None:
    (said,) = advised(tmp_path, steps(communication=150), steps(forward=180))
    assert "and rank 1 is the slow one" in said
    assert "Send less" not in said


def test_time_between_steps(tmp_path: Path) -> None:
    (said,) = advised(tmp_path, steps(other=42))
    assert said.startswith("30 % of each step (42 ms) is none of data, forward, backward or optimizer")


def test_work_that_was_lost(tmp_path: Path) -> None:
    write_rank(tmp_path, steps(), end="failed")
    write_rank(tmp_path, steps(), attempt=1, began=1_000_004.0)
    (said,) = advice(summarize(read_run(str(tmp_path))))
    assert said.text.startswith("50 % of the time (4.0 s) was work that a restart did again.")


def test_few_steps_tell_nothing_of_a_step(tmp_path: Path) -> None:
    assert advised(tmp_path, steps(5, data=500)) == []


def test_each_rule_has_its_test_and_its_page_exists(tmp_path: Path) -> None:
    assert len(rules.RULES) == 7
    docs = Path(__file__).parents[3] / "docs"
    pages = [
        [*steps(), row(0, 0, start=9000)],
        steps(data=300),
        [*steps(), row(0, 0, checkpoint=4000)],
        [*steps(), row(0, 0, validation=9000)],
        steps(communication=300),
        steps(other=300),
    ]
    for index, rows in enumerate(pages):
        write_rank(tmp_path / str(index), rows, plan=DDP)
        (said,) = advice(summarize(read_run(str(tmp_path / str(index)))))
        path, _, anchor = said.page.partition("#")
        text = (docs / path).read_text().lower()
        assert not anchor or f"## {anchor.replace('-', ' ')}" in text
