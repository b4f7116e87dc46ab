"""`stratagem new plugin`: what it writes installs, is discovered, and passes the kit as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stratagem_testing.commands.new import KINDS

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[4]


def run(*words, folder, path=""):
    places = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a new plugin of each kind, and a folder into which pip installed them all."""
    base = tmp_path_factory.mktemp("new")
    for kind in KINDS:
        done = run(BIN / "stratagem", "new", "plugin", f"my-{kind}", "--kind", kind, folder=base)
        assert done.returncode == 0, done.stderr
        assert f"my-{kind}/src/my_{kind}/plugin.py" in done.stdout
    based = ["my_ddp_2", "--base", "ddp"]
    done = run(BIN / "stratagem", "new", "plugin", *based, folder=base)
    assert done.returncode == 0, done.stderr
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = run(
        *pip,
        "--target",
        base / "site",
        *(base / f"my-{kind}" for kind in KINDS),
        base / "my_ddp_2",
        folder=base,
    )
    assert done.returncode == 0, done.stderr
    return base


def test_all_kinds_are_discovered_from_their_distributions(made):
    listed = json.loads(run(BIN / "stratagem", "plugins", "--json", folder=made, path=made / "site").stdout)
    offered = {r["distribution"]: (r["status"], [c["kind"] for c in r["components"]]) for r in listed}
    for kind in KINDS:
        assert offered[f"my-{kind}"] == ("ok", ["extension" if kind == "launcher" else kind])
    assert offered["my-ddp-2"] == ("ok", ["strategy"])


def test_what_is_written_imports_without_a_warning(made):
    files = [path.relative_to(made) for path in made.glob("my-*/src/*/*.py")]
    modules = sorted(".".join(path.with_suffix("").parts[2:]) for path in files)
    assert len(modules) > 2 * len(KINDS)
    done = run(
        sys.executable, "-W", "error", "-c", f"import {', '.join(modules)}", folder=made, path=made / "site"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "strategy"])
def test_a_part_passes_its_tests_as_it_stands(made, kind):
    done = run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        folder=made / f"my-{kind}",
        path=made / "site",
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_strategy_passes_its_tests_as_it_stands(made):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not -1 and not -4 and not start_methods"]
    done = run(sys.executable, *words, folder=made / "my-strategy", path=made / "site")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.long
def test_a_derived_strategy_passes_its_tests_and_depends_on_its_base(made):
    assert '"stratagem-ddp>=' in (made / "my_ddp_2/pyproject.toml").read_text()
    # What differs from the base stands around its answer: the checks of whatever loops ask of that.
    asked = (
        "parity-2 or accumulation-2 or closure-2 or norm_clipping-2 or manual or save_and_load-2 or unused"
    )
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"({asked}) and not -4 and not -1"]
    done = run(sys.executable, *words, folder=made / "my_ddp_2", path=made / "site")
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout


def test_a_base_is_an_installed_strategy(tmp_path):
    done = run(BIN / "stratagem", "new", "plugin", "mine", "--base", "dpd", folder=tmp_path)
    assert done.returncode == 2
    assert "no strategy is called 'dpd'" in done.stderr
    words = ["mine", "--kind", "precision", "--base", "ddp"]
    done = run(BIN / "stratagem", "new", "plugin", *words, folder=tmp_path)
    assert done.returncode == 2
    assert "a strategy to derive from" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_it_trains_by_its_name_and_refuses_what_it_has_not(made, tmp_path):
    fit = [BIN / "stratagem", "fit", f"{ROOT}/tests/support/small.py:Line", "--max-steps", "4"]
    flags = ["--strategy", "my-strategy", "--accelerator", "cpu", "--devices", "2", "--run-dir", "run"]
    done = run(*fit, *flags, folder=tmp_path, path=made / "site")
    assert done.returncode == 0, done.stderr
    assert "my-strategy 0.1.0" in done.stderr
    done = run(*fit, *flags, "--set", "strategy.nonsense=1", folder=tmp_path, path=made / "site")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("My_Plugin", "lowercase letters"),
        ("1st", "can't be the name"),
        ("import", "a keyword or a module of Python"),
        ("none", "a keyword or a module of Python"),
        ("json", "a keyword or a module of Python"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(tmp_path, name, words):
    done = run(BIN / "stratagem", "new", "plugin", name, folder=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    done = run(BIN / "stratagem", "new", "plugin", "mine", "--into", "file/in", folder=tmp_path)
    assert done.returncode == 2
    assert "file/in/mine/pyproject.toml can't be written: Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    done = run(BIN / "stratagem", "new", "plugin", "mine", folder=tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert list((tmp_path / "mine").iterdir()) == []
