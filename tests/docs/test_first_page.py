"""The first page, README and the page of examples show what is there."""

import re
from pathlib import Path

import pytest

from stratagem import RunConfig
from stratagem.resolve.run import assemble
from stratagem.runtime.plan import announce

ROOT = Path(__file__).parents[2]
COMMAND = (
    "stratagem fit examples/digits.py:Digits --max-epochs 10 --strategy ddp --accelerator cpu --devices 2"
)


def test_the_run_on_the_first_page_and_in_the_picture_has_the_plan_that_is_printed(capsys):
    announce(assemble(RunConfig(strategy="ddp", accelerator="cpu", devices=2), {}))
    plan = [
        re.sub(r"\d+ usable cores?", "2 usable cores", line) for line in capsys.readouterr().err.splitlines()
    ]
    page = (ROOT / "docs/index.md").read_text()
    assert "stratagem demo" in page
    assert COMMAND.replace("examples/", "") in page
    assert "\n".join(plan) in page
    picture = (ROOT / "docs/assets/run.svg").read_text()
    assert COMMAND in picture
    words = " ".join(re.sub(r"<[^>]+>", " ", picture).split())
    assert re.sub(r"\d+ usable cores?", "2 usable cores", " ".join(" ".join(plan).split())) in words, (
        "`make picture`"
    )
    assert "val_acc" in words


@pytest.mark.parametrize("name", ["run", "logo"])
def test_a_picture_fetches_nothing(name):
    picture = (ROOT / f"docs/assets/{name}.svg").read_text()
    assert re.findall(r"https?://\S+", picture.replace('xmlns="http://www.w3.org/2000/svg"', "")) == []


def test_readme_begins_with_how_to_install_it_the_demo_and_the_picture():
    readme = (ROOT / "README.md").read_text()
    words = ("pip install", "stratagem demo", COMMAND.replace("examples/", ""), "docs/assets/run.svg")
    places = [readme.index(each) for each in words]
    assert places == sorted(places)
    assert places[-1] < 1000


def test_every_example_is_on_its_page_with_its_command():
    page = (ROOT / "docs/examples.md").read_text()
    files = [path for path in (ROOT / "examples").iterdir() if path.is_file()]
    assert len(files) >= 12
    assert [path.name for path in files if f"`{path.name}`" not in page] == []
    assert [path.name for path in files if f"examples/{path.name}" not in page] == []


def test_figures_of_other_trainers_are_those_of_the_page_that_says_how_they_are_measured():
    measured = (ROOT / "docs/performance.md").read_text()
    assert "python tests/benchmarks/other_trainers.py" in measured
    shown = re.findall(r"^\| (.+?) \| (\d\.\d\d) \|$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
    assert len(shown) >= 6
    assert [row for row in shown if f"| {row[0]} | {row[1]} | " not in measured] == []
