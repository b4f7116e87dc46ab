"""`stratagem report`: what it writes, and what it refuses in one sentence."""

from pathlib import Path

import pytest
from records import row, write_rank
from stratagem_cli.main import main

STEPS = [row(0, 0, start=900), *[row(data=1, forward=4, backward=5, optimizer=1)] * 30]


def test_the_page_and_the_summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, factor in enumerate((1, 1.5)):
        steps = [row(data=1, forward=10 * factor, backward=10 * factor, communication=20 - 15 * rank)] * 30
        write_rank(folder / "a", steps, rank=rank, world_size=2)
    (folder / "a/metrics.csv").write_text("step,epoch,<b>loss</b>\n1,0,2.5\n2,0,1.5\n3,0,nan\n4,0,")
    assert main(["report", "a"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("30 steps on 2 ranks in 1.")
    assert "slow: rank 1 is 48 % slower than the others" in said
    assert said.endswith("page  a/report.html\n")
    page = (folder / "a/report.html").read_text()
    assert "&lt;b&gt;loss" in page
    assert "<b>loss" not in page
    assert page.index("30 steps on 2 ranks") < page.index("<svg")
    assert "http" not in page
    assert "<script" not in page


def test_several_runs_beside_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("x/same", 1), ("y/same", 2)):
        write_rank(folder / name, [row(forward=10 * factor)] * 20)
    assert main(["report", "x/same", "y/same", "--output", "both.html"]) == 0
    page = (folder / "both.html").read_text()
    assert "x/same trained fastest: 3,200 samples/s, 2 × y/same." in page
    assert "y/same\n20 steps on 1 rank" in capsys.readouterr().out


def test_what_a_killed_run_left_is_shown(folder: Path) -> None:
    path = write_rank(folder / "a", STEPS, end=None)
    path.write_bytes(path.read_bytes() + b'{"rows":[[1,2')
    write_rank(folder / "a", STEPS, rank=1).write_text("")
    assert main(["report", "a"]) == 0
    assert "was killed, or still runs" in (folder / "a/report.html").read_text()


def test_a_run_without_a_step_is_shown(folder: Path) -> None:
    write_rank(folder / "a", [])
    assert main(["report", "a"]) == 0


def test_no_run(refused, folder: Path) -> None:
    assert refused("report").startswith("RUN is missing")
    assert refused("report", "nowhere") == (
        "there is no run folder nowhere: name the folder of a run, as runs/20260131-120000-Net"
    )


def test_no_record(refused, folder: Path) -> None:
    (folder / "a/record/attempt-000").mkdir(parents=True)
    assert refused("report", "a") == (
        "a has no record (no rank's file in record/): train with --use record, or plugins=['record']"
    )


@pytest.mark.parametrize(
    ("was", "torn"),
    [
        ('"rows": [[', '"rows": [[7,'),
        ('"format": 1', '"format": 99'),
        ('{"rows"', '{"rows'),
        ('"rows": [[0', '"rows": [["x"'),
        ('"phases": ["data"', '"phases": ["date"'),
        ('{"memory": {', '{"memory": ["'),
    ],
)
def test_a_damaged_file(refused, folder: Path, was: str, torn: str) -> None:
    path = write_rank(folder / "a", STEPS)
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, torn, 1))
    assert refused("report", "a").startswith("a/record/attempt-000/rank-00000.jsonl is damaged: line ")


def test_a_page_that_cant_be_written(refused, folder: Path) -> None:
    write_rank(folder / "a", STEPS)
    said = refused("report", "a", "--output", "none/page.html")
    assert (
        said == "none/page.html can't be written: No such file or directory; name another file with --output"
    )
