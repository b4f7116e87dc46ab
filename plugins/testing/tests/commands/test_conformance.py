"""`stratagem conformance`: table, JSON, page and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STRATAGEM = Path(sys.executable).with_name("stratagem")


def conformance(folder, *args, path=""):
    environ = {**os.environ, "PYTHONPATH": str(path), "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        [STRATAGEM, "conformance", *args],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_component_that_conforms(tmp_path):
    done = conformance(tmp_path, "cpu", "64-true", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert "accelerator cpu of stratagem-cpu" in done.stdout
    assert "made_without_arguments   ✓" in done.stdout
    assert "5 passed, 0 failed, 4 skipped, 0 waived" in done.stdout
    assert "precision 64-true" in (tmp_path / "page.html").read_text()


def test_a_strategy_as_json(tmp_path):
    done = conformance(
        tmp_path, "ddp", "--world-size", "2", "--check", "parity", "--check", "ranks", "--json"
    )
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert [(c["check"], c["world_size"], c["verdict"]) for c in report["checks"]] == [
        ("ranks", 2, "passed"),
        ("parity", 2, "passed"),
    ]


@pytest.fixture
def speechless(tmp_path):
    """A folder with an accelerator that names no backend, and has no way to count its devices."""
    info = tmp_path / "speechless-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speechless\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stratagem]\nspeechless = speechless_plugin\n")
    (tmp_path / "speechless_plugin.py").write_text(
        "from stratagem import Component, hookimpl\n"
        "@hookimpl\n"
        "def stratagem_components():\n"
        "    return [Component('accelerator', 'speechless', 'speechless:Speechless', 'says nothing')]\n"
    )
    (tmp_path / "speechless.py").write_text(
        "from stratagem_cpu import CpuAccelerator\nclass Speechless(CpuAccelerator):\n    backend = ''\n"
    )
    return tmp_path


def test_one_that_does_not_exits_with_1_and_says_why(speechless):
    done = conformance(speechless, "speechless", path=speechless)
    assert done.returncode == 1
    assert "✗   failed: it names no backend for process groups" in done.stdout
    assert "4 passed, 1 failed" in done.stdout


@pytest.mark.long
def test_what_failed_is_tried_again_until_it_passes(speechless):
    first = conformance(speechless, "speechless", "--fail-fast", "--json", path=speechless)
    verdicts = [check["verdict"] for check in json.loads(first.stdout)[0]["checks"]]
    assert (first.returncode, verdicts.count("failed"), verdicts[-1]) == (1, 1, "failed")
    again = conformance(speechless, "speechless", "--failed", "--json", path=speechless)
    assert (again.returncode, len(json.loads(again.stdout)[0]["checks"])) == (1, 1)
    (speechless / "speechless.py").write_text("from stratagem_cpu import CpuAccelerator as Speechless\n")
    fixed = conformance(speechless, "speechless", "--failed", path=speechless)
    assert (fixed.returncode, "1 passed, 0 failed" in fixed.stdout) == (0, True)
    done = conformance(speechless, "speechless", "cpu", "--failed", path=speechless)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "speechless: nothing failed the last time\ncpu: nothing failed the last time\n"


def test_a_misspelt_name_costs_no_minutes(tmp_path):
    done = conformance(tmp_path, "cpu", "dpp")
    assert done.returncode == 2
    assert "no strategy is called 'dpp'; nearest:" in done.stderr
    assert done.stdout == ""


def test_a_page_that_cannot_be_written_costs_no_minutes_either(tmp_path):
    done = conformance(tmp_path, "cpu", "--html", "nowhere/page.html")
    assert done.returncode == 2
    assert "--html nowhere/page.html can't be written" in done.stderr
    assert done.stdout == ""


@pytest.mark.long
def test_on_an_accelerator_at_the_sizes_it_has_devices_for(tmp_path):
    done = conformance(tmp_path, "single", "--accelerator", "cpu", "--check", "parity", "--json")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert [(c["check"], c["verdict"]) for c in report["checks"]] == [("parity", "passed")]
    for arguments, words in (
        (("64-true", "--accelerator", "cpu"), "'64-true' is a precision"),
        (("ddp", "--accelerator", "cup"), "no accelerator is called 'cup'"),
    ):
        done = conformance(tmp_path, *arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
