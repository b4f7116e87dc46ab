"""Hooks that don't fit together are one sentence, wherever that is found out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stratagem_cli.main import main

EXTENSIONS = """
import os

from stratagem import hookimpl

class Answers:
    @hookimpl
    def reduce(self, request):
        return None

class AnswersToo(Answers):
    @hookimpl
    def reduce(self, request):
        return None

class LostItsMarker(Answers):
    def reduce(self, request):
        return None

class LostItsMarkerInWorkers(Answers):
    if "RANK" in os.environ:
        def reduce(self, request):
            return None
    else:
        @hookimpl(wrapper=True)
        def reduce(self, request):
            return (yield)

class Misspelt:
    @hookimpl
    def reduse(self, request):
        return None

class OtherArgument:
    @hookimpl
    def reduce(self, requested):
        return None

class Forgets:
    @hookimpl(wrapper=True)
    def setup(self, request):
        yield

class GivesTheModule:
    @hookimpl(wrapper=True)
    def setup(self, request):
        yield
        return request.module

class NoLauncher:
    @hookimpl(wrapper=True)
    def launch(self, request):
        yield
        return "a launcher"
"""
SEALING = {
    "DoubleAnswerError": (["Answers", "AnswersToo"], "hook 'reduce' is answered by "),
    "LostMarkerError": (["LostItsMarker"], "LostItsMarker.reduce of "),
    "UnknownHookError": (["Misspelt"], "Misspelt implements ['reduse'], but the hooks are "),
    "HookArgumentError": (["OtherArgument"], "OtherArgument.reduce of "),
}
IN_THE_RUN = {
    "NoneAnswerError": ("Forgets", "hook 'setup' was answered with None by "),
    "WrongAnswerError": ("GivesTheModule", "hook 'setup' was answered with an object of "),
    "WrongAnswerError, launching": ("NoLauncher", "hook 'launch' was answered with an object of str by "),
}


@pytest.fixture
def planted(net: Path) -> Path:
    Path("planted.py").write_text(EXTENSIONS)
    return net


def words(*classes: str, devices: int = 1) -> list[str]:
    uses = [word for name in classes for word in ("--use", f"planted:{name}")]
    strategy = "ddp" if devices > 1 else "single"
    run = ["fit", "net.py:Net", "--max-steps", "1", "--run-dir", "out", "--accelerator", "cpu"]
    return [*run, "--strategy", strategy, "--devices", str(devices), *uses]


@pytest.mark.parametrize("error", SEALING)
def test_what_sealing_finds_is_one_line_and_nothing_is_started(planted, refused, error) -> None:
    classes, said = SEALING[error]
    assert refused(*words(*classes)).startswith(said)
    assert refused.everything.count("\n") == 1


@pytest.mark.parametrize("error", IN_THE_RUN)
def test_what_an_answer_shows_is_one_line_and_a_failure_of_the_run(planted, capfd, error) -> None:
    name, said = IN_THE_RUN[error]
    assert main(words(name)) == 1
    assert [line[7:][: len(said)] for line in errors(capfd.readouterr().err)] == [said]


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("LostItsMarkerInWorkers", 2, "LostItsMarkerInWorkers.reduce of "),
        ("GivesTheModule", 1, "hook 'setup' was answered with an object of "),
    ],
)
def test_of_a_worker_it_is_the_same_line(planted, name, code, said) -> None:
    program = Path(sys.executable).with_name("stratagem")
    done = subprocess.run(
        [program, *words(name, devices=2)], env=dict(os.environ), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, done.stderr
    assert [line[7:][: len(said)] for line in errors(done.stderr)] == [said]


def errors(text: str) -> list[str]:
    """The lines about the error; no traceback."""
    assert "Traceback" not in text, text
    return [line for line in text.splitlines() if "rror" in line]
