"""What lists our distributions is written from packages.toml, which has each of them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages_generator", ROOT / "docs/gen/packages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lists_are_current(generator) -> None:
    stale = [
        path.name for path, text in generator.written(generator.read()).items() if path.read_text() != text
    ]
    assert not stale, "run `make packages`"


def test_the_list_has_every_distribution(generator) -> None:
    folders = [project.parent.name for project in ROOT.glob("plugins/*/pyproject.toml")]
    assert sorted(generator.read()) == sorted(["core", *folders])


def test_a_new_line_reaches_every_list(generator) -> None:
    packages = generator.read()
    packages["new-one"] = {
        "brings": "strategy `new_one`",
        "in": "extra",
        "with": "engine",
        "comment": "# Why.\n",
    }
    texts = {path.name: text for path, text in generator.written(packages).items()}
    project = texts["pyproject.toml"]
    assert '# Why.\nnew-one = ["stratagem-new-one[engine]==0.1.*"]\n' in project
    assert ",mps,new-one,pipeline," in project
    assert project.count('  "stratagem_new_one",\n') == 4
    assert '  "plugins/new-one/src",\n' in project
    assert "          - {project: plugins/new-one, name: stratagem-new-one}\n" in texts["release.yml"]
    assert "| `stratagem-new-one` | strategy `new_one` |\n" in texts["README.md"]
    assert "            - ../../plugins/new-one/src\n" in texts["mkdocs.yml"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('brings = "a"\nin = "nowhere"', '"in" must be one of'),
        ('in = "extra"', 'needs "brings"'),
        ('brings = "a"\nin = "extra"\nwhit = "b"', "unknown fields whit"),
    ],
)
def test_a_wrong_line_is_refused(generator, tmp_path, table, said) -> None:
    (tmp_path / "packages.toml").write_text(f"[one]\n{table}\n")
    with pytest.raises(SystemExit, match=said):
        generator.read(tmp_path / "packages.toml")
