"""docs/architecture.md tells the truth about folders and layers."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
CORE = ROOT / "core/src/stratagem"


def settings() -> dict:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML reader")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def table(heading: str) -> list[list[str]]:
    """First column of the table under a heading, as the names in backticks of each row."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows]


def test_the_layers_are_those_that_are_checked():
    contract = next(c for c in settings()["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    checked = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    assert table("Layers of the core") == checked


def test_every_module_of_the_core_is_in_a_layer():
    modules = {
        path.stem for path in CORE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    layers = {name for layer in table("Layers of the core") for name in layer}
    assert layers == modules - {"__init__"}


def test_every_folder_is_there():
    for row in table("Folders"):
        for folder in row:
            if folder != "third_party/":
                assert (ROOT / folder.replace("<name>", "ddp")).is_dir(), folder


def test_every_top_level_folder_is_on_the_page():
    built = {"site", "dist", "build", "runs", "shared"}
    tops = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - built
    assert tops == {row[0].split("/")[0] for row in table("Folders")}


def test_every_plugin_is_installed_checked_and_offered():
    names = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
    packages = [f"stratagem_{name.replace('-', '_')}" for name in names]
    linter = settings()["tool"]["importlinter"]
    assert linter["root_packages"] == ["stratagem", *packages]
    forbidden, independent, offered = linter["contracts"][1:]
    assert forbidden["forbidden_modules"] == independent["modules"] == offered["source_modules"] == packages
    inner = {path.stem for path in CORE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    open_to_all = {"__init__", "__main__", "errors", "sdk"}
    assert {f"stratagem.{name}" for name in inner - open_to_all} == set(offered["forbidden_modules"])
    assert settings()["tool"]["mypy"]["mypy_path"] == ["core/src", *(f"plugins/{n}/src" for n in names)]
    project = settings()["project"]
    extras = project["optional-dependencies"]
    required = " ".join([*project["dependencies"], *(d for e in extras.values() for d in e)])
    without_extras = re.sub(r"\[\w+\]", "", required)
    assert [name for name in names if f"stratagem-{name}==" not in without_extras] == []
