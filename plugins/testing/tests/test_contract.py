"""A contract in the tests of a plugin: what pytest prints, and what it keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

THEIRS = """
import pytest
from stratagem_testing import AcceleratorContract, AcceleratorSubject
from theirs import Speechless


class TestRight(AcceleratorContract):
    @pytest.fixture
    def subject(self):
        return AcceleratorSubject("cpu")


class TestWaived(AcceleratorContract):
    @pytest.fixture
    def subject(self):
        return AcceleratorSubject(Speechless, waivers={"made_without_arguments": "issue 12"})


class TestWrong(AcceleratorContract):
    @pytest.fixture
    def subject(self):
        return AcceleratorSubject(Speechless)


class TestForgotten(AcceleratorContract):
    pass
"""
MODULE = """
from stratagem_cpu import CpuAccelerator


class Speechless(CpuAccelerator):
    backend = ""
"""


@pytest.fixture(scope="module")
def pytest_output(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, object]]]:
    folder: Path = tmp_path_factory.mktemp("theirs")
    (folder / "test_theirs.py").write_text(THEIRS)
    (folder / "theirs.py").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-rxX",
        "-p",
        "no:cacheprovider",
        "--conformance-json",
        "o.json",
    ]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    return done.stdout, json.loads((folder / "o.json").read_text())


def test_each_check_is_a_test_of_its_own(pytest_output: tuple[str, list[dict[str, object]]]) -> None:
    printed, _ = pytest_output
    assert "TestRight::test_conforms[computes] PASSED" in printed
    assert "TestWrong::test_conforms[made_without_arguments] FAILED" in printed
    assert "TestWrong::test_conforms[computes] PASSED" in printed


def test_a_failure_says_the_claim_and_what_was_seen(
    pytest_output: tuple[str, list[dict[str, object]]],
) -> None:
    printed, _ = pytest_output
    assert "It is made without arguments, has a name and a process group backend" in printed
    assert "it names no backend for process groups" in printed
    assert "outcome.py" not in printed  # no traceback of ours


def test_a_waiver_is_an_expected_failure_with_its_reason(
    pytest_output: tuple[str, list[dict[str, object]]],
) -> None:
    printed, _ = pytest_output
    assert "TestWaived::test_conforms[made_without_arguments] XFAIL" in printed
    assert "made_without_arguments: issue 12" in printed


def test_a_contract_without_a_subject_says_what_to_write(
    pytest_output: tuple[str, list[dict[str, object]]],
) -> None:
    printed, _ = pytest_output
    assert "TestForgotten has no fixture `subject`: override it" in printed


def test_outcomes_are_kept_in_the_file(pytest_output: tuple[str, list[dict[str, object]]]) -> None:
    _, outcomes = pytest_output
    found = [(o["name"], o["check"], o["verdict"]) for o in outcomes]
    assert found[0] == ("cpu", "made_without_arguments", "passed")
    assert ("Speechless", "made_without_arguments", "waived") in found
    assert ("Speechless", "made_without_arguments", "failed") in found
    assert len(found) == 27
