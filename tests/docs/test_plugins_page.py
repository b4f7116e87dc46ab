"""docs/plugins.md is what the distributions say of themselves."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("plugins_page_generator", ROOT / "docs/gen/plugins.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    text = (ROOT / "docs/plugins.md").read_text()
    assert text == generator.page(), "run `make plugins`"
    rows = [line for line in text.splitlines() if line.startswith("| `stratagem-")]
    assert len(rows) == 1 + len(list(ROOT.glob("plugins/*/pyproject.toml")))


def test_the_first_page_names_every_distribution_and_what_stratagem_depends_on() -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| `(stratagem-[\w-]+)` \|", text, re.MULTILINE)
    folders = {f"stratagem-{project.parent.name}" for project in ROOT.glob("plugins/*/pyproject.toml")}
    assert sorted(rows) == sorted({"stratagem-core", *folders})
    said = re.search(r"^`stratagem` depends on (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert said is not None
    project = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("]")[0]
    named = {f"stratagem-{name}" for name in re.findall(r"`([\w-]+)`", said[1])}
    assert named == set(re.findall(r'"(stratagem-[\w-]+)==', project))


def test_every_extra_of_stratagem_is_in_all() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r'^([\w-]+) = \["stratagem-', text, re.MULTILINE)
    (everything,) = re.findall(r'^all = \["stratagem\[(.*)\]"\]$', text, re.MULTILINE)
    assert everything.split(",") == sorted({*extras} - {"xla"}), "xla is for an environment of its own"
