"""What the core may know and what may be imported when; import-linter checks the layers themselves."""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from stratagem_cli.survey import plugin_records

from stratagem.installed.catalogue import load_catalogue

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core/src/stratagem"
PACKAGES = sorted(path.parent.name.replace("-", "[-_]") for path in ROOT.glob("plugins/*/pyproject.toml"))
PLUGINS = sorted(path.parents[2].name for path in ROOT.glob("plugins/*/src/*/plugin.py"))


def imported_by(statement: str) -> set[str]:
    """Top-level packages in sys.modules after `statement` ran in a fresh interpreter."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


LIGHT = (
    "accelerators.indices",
    "config",
    "errors",
    "environments.base",
    "environments.detect",
    "installed.catalogue",
    "launchers.base",
    "plugin.component",
    "plugin.hookspecs",
    "plugin.requests",
    "plugin.sealing",
    "resolve.devices",
    "sdk.catalogue",
    "sdk.processes",
    "sdk.runs",
    "sdk.selection",
)


def test_torch_is_not_imported_before_it_is_needed():
    core = [f"stratagem.{name}" for name in LIGHT]
    modules = ", ".join([*core, "stratagem_cli.main", "stratagem_cli.commands", "stratagem_cli.flags"])
    assert imported_by(f"import stratagem, {modules}") & {"torch", "numpy", "matplotlib"} == set()


def test_the_fork_server_is_started_before_torch_is_imported():
    statement = """
from stratagem_cli.early import preload_where_likely
assert preload_where_likely({"strategy": "ddp", "accelerator": "cpu", "devices": "2"}, {})
"""
    assert imported_by(statement) & {"torch", "numpy"} == set()


def test_the_catalogue_is_read_without_torch():
    statement = "from stratagem.installed.catalogue import load_catalogue; assert load_catalogue().components"
    assert imported_by(statement) & {"torch", "numpy"} == set()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_is_described_without_torch(plugin):
    package = f"stratagem_{plugin.replace('-', '_')}"
    imported = imported_by(f"import {package}, {package}.plugin")
    assert imported & {"torch", "numpy"} == set()


def test_every_package_under_plugins_is_installed_and_sound():
    records = {record["distribution"]: record for record in plugin_records(load_catalogue())}
    wrong = {name: record for name, record in records.items() if record["status"] != "ok"}
    assert wrong == {}
    assert {f"stratagem-{name}" for name in PLUGINS} <= set(records)


def strategies_and_accelerators() -> set[str]:
    catalogue = load_catalogue()
    names = [*catalogue.names("strategy"), *catalogue.names("accelerator")]
    # The core itself is written on torch, and runs where there is nothing but a CPU.
    return set(names) - {"torch", "cpu", "single", "gpu"}


def words_in_code(path: Path) -> set[str]:
    """Identifiers, and string constants that are one word, apart from docstrings and comments."""
    words: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            words.add(token.string)
        elif token.type == tokenize.STRING and re.fullmatch(r"""['"][\w.-]+['"]""", token.string):
            words.add(token.string.strip("'\""))
    return words


def test_the_core_names_no_strategy_or_accelerator():
    names = strategies_and_accelerators()
    assert {"ddp", "cuda", "mps"} <= names
    found = {
        str(path.relative_to(CORE)): sorted(words_in_code(path) & names)
        for path in CORE.rglob("*.py")
        if words_in_code(path) & names
    }
    assert found == {"data/pipelines.py": ["pipeline"]}  # the attribute of webdataset's loaders


def test_the_core_knows_no_axis_by_name():
    names = set(load_catalogue().names("axis"))
    assert {"shard", "tensor", "replicate"} <= names
    found = {}
    for path in CORE.rglob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        strings = {token.string.strip("'\"") for token in tokens if token.type == tokenize.STRING}
        if strings & names:
            found[str(path.relative_to(CORE))] = strings & names
    assert found == {"data/pipelines.py": {"pipeline"}}  # the attribute of webdataset's loaders


def test_the_core_names_no_distribution_of_a_plugin():
    names = re.compile(rf"\bstratagem[-_](?:{'|'.join(PACKAGES)})\b")
    assert names.search("pip install stratagem-ddp")
    found = {
        str(path.relative_to(CORE)): names.findall(path.read_text())
        for path in CORE.rglob("*.*")
        if path.suffix != ".pyc"
    }
    assert {path: named for path, named in found.items() if named} == {}


def test_plugins_import_public_names_only():
    private = []
    for path in [*ROOT.glob("plugins/*/src/**/*.py"), *ROOT.glob("examples/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stratagem":
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            else:
                continue
            private += [
                f"{path.name}: {name}" for name in names if name.startswith("_") and name != "__future__"
            ]
    assert private == []
