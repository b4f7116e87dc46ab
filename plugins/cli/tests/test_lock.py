"""`stratagem plugins lock` and `--locked`, with a plugin that pip installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from stratagem_cli.commands import PluginGroup
from stratagem_cli.main import main

import stratagem

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "small-party"
version = "1.5"

[project.entry-points.stratagem]
small = "small_party.plugin"
"""
PLUGIN = """
from pathlib import Path

from stratagem import hookimpl

Path({marker!r}).touch()


@hookimpl
def stratagem_commands(cli):
    cli.add_lazy("greet", "small_party.greet:greet")
"""
LOOP = """
import os, sys
import stratagem

def loop(runtime):
    print("locked by", os.path.basename(os.environ["STRATAGEM_LOCKED"]), "in", runtime.rank, sys.argv[1:])

stratagem.Runtime().launch(loop)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which pip installed a plugin, and a file `marker` beside it that its import makes."""
    base = tmp_path_factory.mktemp("small")
    package = base / "source/src/small_party"
    package.mkdir(parents=True)
    (base / "source/pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(PLUGIN.format(marker=str(base / "marker")))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", base / "site", base / "source"], check=True)
    return base / "site"


@pytest.fixture
def stratagem_in(tmp_path):
    """Run `stratagem` in an empty folder where `sites` are on the path; returns output, errors and exit code."""

    def run(*words: str, sites: tuple[Path, ...] = (), **variables: str) -> tuple[str, str, int]:
        paths = os.pathsep.join(filter(None, [*map(str, sites), os.environ.get("PYTHONPATH", "")]))
        program = Path(sys.executable).with_name("stratagem")
        environ = {**os.environ, "PYTHONPATH": paths, **variables}
        done = subprocess.run([program, *words], cwd=tmp_path, env=environ, capture_output=True, text=True)
        return done.stdout, done.stderr, done.returncode

    return run


def test_a_plugin_that_is_not_locked_is_refused_before_it_is_imported(
    installed, stratagem_in, tmp_path
) -> None:
    marker = installed.parent / "marker"
    assert stratagem_in("plugins", "lock")[2] == 0
    sites = (installed,)
    for words in [["fit", "net.py:Net", "--locked"], ["run", "--devices", "1", "--locked", "loop.py"]]:
        out, err, code = stratagem_in(*words, sites=sites)
        assert (out, code) == ("", 2)
        assert err.startswith("Error: the plugin small-party 1.5 (file:///"), err
        assert err.count("\n") == 1
    for words in [["plugins"], ["strategies"], ["--help"]]:
        _, err, code = stratagem_in(*words, sites=sites, STRATAGEM_LOCKED="stratagem.lock")
        assert (err[:27], code) == ("Error: the plugin small-par", 2)
    _, err, code = stratagem_in("plugins", "lock", "--check", sites=sites)
    assert (err[:27], code) == ("Error: the plugin small-par", 2)
    assert not marker.exists()

    out, _, code = stratagem_in("plugins", "lock", sites=sites, STRATAGEM_LOCKED="stratagem.lock")
    assert code == 0
    assert "small-party" in out
    assert not marker.exists()
    locked = json.loads((tmp_path / "stratagem.lock").read_text())["plugins"]["small-party"]
    assert (locked["version"], locked["origin"][:8]) == ("1.5", "file:///")
    assert stratagem_in("plugins", "lock", "--check", sites=sites) == (
        "stratagem.lock is what is installed\n",
        "",
        0,
    )
    out, _, code = stratagem_in("plugins", sites=sites, STRATAGEM_LOCKED="stratagem.lock")
    assert code == 0
    assert "greet" in out
    assert marker.exists()


def test_workers_check_the_same_and_flags_of_a_script_are_its_own(stratagem_in, tmp_path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    assert stratagem_in("plugins", "lock", "--file", "ours.lock")[2] == 0
    flags = ["--strategy", "ddp", "--accelerator", "cpu", "--devices", "2", "--locked"]
    unbuffered = {"PYTHONUNBUFFERED": "1"}  # ranks write whole lines all the same
    out, err, code = stratagem_in("run", *flags, "loop.py", STRATAGEM_LOCKED="ours.lock", **unbuffered)
    assert code == 0, err
    assert sorted(out.splitlines()[-2:]) == [f"locked by ours.lock in {rank} []" for rank in (0, 1)]
    _, err, code = stratagem_in("run", "none.py", "--locked")
    assert (err, code) == ("Error: SCRIPT 'none.py' can't be found: there is no such file\n", 2)


def test_a_file_that_is_not_there_is_one_sentence(folder, refused) -> None:
    said = refused("fit", "net.py:Net", "--locked")
    assert said.startswith(
        f"the lock file '{folder}/stratagem.lock' can't be read: No such file or directory"
    )
    assert "STRATAGEM_LOCKED" not in os.environ


def test_own_commands_have_the_flag(folder, monkeypatch) -> None:
    @click.command()
    @stratagem.options
    def command(runtime):
        runtime.launch(print)

    monkeypatch.setenv("STRATAGEM_LOCKED", "")
    with pytest.raises(SystemExit) as ended:
        command.main(["--locked", "--devices", "1"], standalone_mode=False)
    assert ended.value.code == 2


def test_the_group_of_plugins_lists_as_before(capsys) -> None:
    assert main(["plugins", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert PluginGroup("x").resolve_command(None, ["plugins", "lock", "--check"])[2] == ["lock", "--check"]
