"""`stratagem report`: what it writes, and what it refuses in one sentence."""

import json
import os
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

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
    assert page.index("30 steps on 2 ranks") < page.index('data-chart="metric &lt;b&gt;loss&lt;/b&gt;"')
    assert not re.search(r"""(?:src|href)=["']?http""", page)
    assert "1 value isn&#x27;t drawn: inf, nan or too large, at step 3 first" in page


def test_times_on_the_device_are_beside_those_of_the_host(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_device = [row(forward=8, backward=20, optimizer=3, data=0.5)] * 3
    for rank in range(2):
        steps = [row(data=1, forward=2, backward=28, optimizer=1)] * 30
        write_rank(
            folder / "a", steps, rank=rank, device="cuda:0", device_steps=on_device[rank:], world_size=2
        )
    assert main(["report", "a"]) == 0
    said = capsys.readouterr().out
    assert (
        "On the device, a step takes 31.5 ms: 20 ms backward, 8 ms forward, 3 ms optimizer, 0.5 ms data."
        in said
    )
    page = (folder / "a/report.html").read_text()
    assert page.count("<span>on the device</span>") == 2
    assert page.count("<th>host</th><th>device</th>") == 4
    assert '<td>2</td><td class="soft">8</td>' in page
    assert "These are means over 2 to 3 sampled steps, by device events." in page
    assert "Times are the host's, but those on the device: " in page
    assert "97 % of the time trained the model; 3.1 % waiting for data.\n" in said  # the host's


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "no step was sampled"),
        ([{"event": "untimed", "step": 2, "why": "<none> here"}], "&lt;none&gt; here"),
    ],
)
def test_where_the_device_is_not_measured_the_page_says_so(
    folder: Path, events: list[dict[str, Any]], why: str
) -> None:
    write_rank(folder / "a", STEPS, device="mps:0", events=events)
    assert main(["report", "a"]) == 0
    page = (folder / "a/report.html").read_text()
    assert (
        f"The phases are the host&#39;s: what the device takes for each isn&#39;t measured ({why})." in page
    )
    assert "on the device" not in page


def test_of_the_cpu_there_is_nothing_of_a_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(folder / "a", STEPS)
    assert main(["report", "a"]) == 0
    assert "device takes" not in capsys.readouterr().out
    page = (folder / "a/report.html").read_text()
    assert "on the device" not in page
    assert "the device takes" not in page
    assert "<footer>Times are the host's: where" in page


def test_settings_of_runs_are_shown_and_those_that_differ_come_first(folder: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        write_rank(folder / name, STEPS)
        (folder / name / "config.yaml").write_text(
            f"seed: 3\nmodel:\n  hidden: 7\n  lr: {lr}\n  note: '<i>odd</i>'\ntrainer:\n  max_steps: null\n"
        )
    assert main(["report", "a", "b", "--output", "both.html"]) == 0
    page = (folder / "both.html").read_text()
    assert re.findall(r"<code>([\w.]+)</code>", page[page.index("<h2>Settings") :])[:4] == [
        "model.lr", "model.hidden", "model.note", "seed",
    ]  # fmt: skip
    assert re.search(r'<tr class="differs">.*model\.lr.*\n.*>0\.1<.*>0\.2<', page)
    assert "max_steps" not in page
    assert "&lt;i&gt;odd&lt;/i&gt;" in page
    assert "<i>odd" not in page


@pytest.mark.parametrize(
    "text",
    ["[", "- 1", "a: &a [*a]", "x: !!python/object/apply:os.getcwd []", "{" * 5000, "\0", "? [1]\n: 2"],
)
def test_an_odd_config_is_left_out(folder: Path, text: str) -> None:
    write_rank(folder / "a", STEPS)
    (folder / "a/config.yaml").write_text(text)
    assert main(["report", "a"]) == 0


def test_a_config_that_names_itself_very_often_ends(folder: Path) -> None:
    write_rank(folder / "a", STEPS)
    for first, kind in (("[1]", "[{0}, {0}]"), ("[1]", "{{x: {0}, y: {0}}}"), ("{}", "{{x: {0}, y: {0}}}")):
        lines = [f"a0: &a0 {first}", *(f"a{n}: &a{n} " + kind.format(f"*a{n - 1}") for n in range(1, 60))]
        (folder / "a/config.yaml").write_text("\n".join(lines))
        assert main(["report", "a"]) == 0


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
        ('{"device": [[3', '{"device": [[3, 4'),
        ('{"device": [[3', '{"device": [[-3'),
    ],
)
def test_a_damaged_file(refused, folder: Path, was: str, torn: str) -> None:
    path = write_rank(folder / "a", STEPS, device_steps=STEPS[:2])
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, torn, 1))
    assert refused("report", "a").startswith("a/record/attempt-000/rank-00000.jsonl is damaged: line ")


def test_a_page_that_cant_be_written(refused, folder: Path) -> None:
    write_rank(folder / "a", STEPS)
    said = refused("report", "a", "--output", "none/page.html")
    assert (
        said == "none/page.html can't be written: No such file or directory; name another file with --output"
    )


ODD = (None, True, -1, 1.5, 2**70, float("nan"), "x", "\ud800", [], [[]], {}, {"a": [1]})
EVENTS = [
    {"event": "saved", "step": 2, "path": "a"},
    {"event": "slow", "step": 3, "rank": 0, "at_step": 3, "ratio": 1.5, "phase": "data"},
    {"event": "untimed", "step": 3, "why": "so"},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in JSON; of a list only its first and second."""
    yield path
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, each in inner:
        yield from places(each, (*path, key))


def test_no_odd_value_ends_in_a_traceback(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each value of two attempts' records becomes each odd one in turn: a page, or one sentence and exit code 2."""
    write_rank(folder / "a", STEPS, attempt=1, events=[{"event": "loaded", "step": 0, "path": "a"}], end=None)
    plan = [["strategy", "ddp", "chosen"]]
    path = write_rank(
        folder / "a", STEPS, device="cuda:0", events=EVENTS, device_steps=STEPS[:2], plan=plan, end="failed"
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    codes = set()
    for number, line in enumerate(lines):
        for place in places(line):
            for odd in ODD:
                changed = deepcopy(line)
                if place:
                    at = changed
                    for key in place[:-1]:
                        at = at[key]
                    at[place[-1]] = odd
                texts = [json.dumps(each) for each in lines]
                texts[number] = json.dumps(changed if place else odd)
                path.write_text("\n".join(texts) + "\n")
                code = main(["report", "a"])
                said = capsys.readouterr().err
                assert (code, len(said.splitlines())) in ((0, 0), (2, 1)), (number, place, odd, said)
                codes.add(code)
    assert codes == {0, 2}


def test_files_of_a_record_that_are_none(folder: Path, refused: Callable[..., str]) -> None:
    path = write_rank(folder / "a", STEPS)
    path.write_text("[" * 100_000 + "\n")
    assert "is damaged: line 1" in refused("report", "a")
    path.unlink()
    os.mkfifo(path)
    assert "no regular file" in refused("report", "a")
    path.unlink()
    write_rank(folder / "a", STEPS)
    (folder / "a/record/attempt-001").write_text("")
    assert "can't be read: Not a directory" in refused("report", "a")
    (folder / "a/record/attempt-001").unlink()
    os.mkfifo(folder / "a/metrics.csv")
    assert main(["report", "a"]) == 0
    (folder / "a/metrics.csv").unlink()
    (folder / "a/metrics.csv").write_text(f"step,epoch,loss\n{'9' * 400},0,1\n1,0,1e308\n2,0,-1e308\n3,0,1\n")
    assert main(["report", "a"]) == 0
    assert "2 values aren&#x27;t drawn" in (folder / "a/report.html").read_text()
    for output in ("a", "nowhere/x", "a\0b"):
        assert "can't be written" in refused("report", "a", "--output", output)
