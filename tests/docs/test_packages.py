"""What lists our distributions is written from packages.toml, which has each of them."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from trove_classifiers import classifiers

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
    texts = {path.relative_to(ROOT).as_posix(): text for path, text in generator.written(packages).items()}
    project = texts["pyproject.toml"]
    assert '# Why.\nnew-one = ["stratagem-new-one[engine]==0.1.*"]\n' in project
    assert ",mps,new-one,pipeline," in project
    assert project.count('  "stratagem_new_one",\n') == 4
    assert '  "plugins/new-one/src",\n' in project
    assert (
        "          - {project: plugins/new-one, name: stratagem-new-one}\n"
        in texts[".github/workflows/release.yml"]
    )
    assert "| `stratagem-new-one` | strategy `new_one` |\n" in texts["README.md"]
    assert "            - ../../plugins/new-one/src\n" in texts["docs/gen/mkdocs.yml"]


def test_every_distribution_says_on_pypi_what_it_is(generator) -> None:
    projects = [
        ROOT / "pyproject.toml",
        *ROOT.glob("core/pyproject.toml"),
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]
    assert len(projects) == len(generator.read()) + 1
    for path in projects:
        project = generator.tomllib.loads(path.read_text())["project"]
        assert project["authors"] == [{"name": "The Stratagem maintainers"}]
        assert "pytorch" in project["keywords"]
        assert set(project["classifiers"]) <= classifiers
        versions = [
            each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)
        ]
        assert versions == versions_in_workflow()
        assert project["readme"] == "README.md"


def versions_in_workflow() -> list[str]:
    jobs = yaml.safe_load((ROOT / ".github/workflows/pull-request.yml").read_text())["jobs"]
    versions = [row["python"] for row in jobs["test"]["strategy"]["matrix"]["include"]]
    assert jobs["wheels"]["strategy"]["matrix"]["python"] == versions
    return versions


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
