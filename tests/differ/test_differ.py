"""A short run of the generator; `make differ` runs it longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.differ.grammar import FREEDOMS, draw
from tests.differ.run import SourceRow, main, minimised, tried
from tests.support import hands_on

ROOT = Path(__file__).parents[2]


def test_programs_under_ddp(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "100", "--programs", "12", "--strategies", "ddp", "--devices", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("12 programs from seed 100: "), said


@pytest.mark.long
def test_programs_under_each_strategy() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.differ.run",
        "--seconds",
        "60",
        "--strategies",
        "ddp",
        "ddp_sharded",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_freedom_is_a_program_in_one_process() -> None:
    for name in FREEDOMS:
        program = next(made for made in map(draw, range(3000)) if name in made.freedoms)
        for other in program.freedoms:
            program = program.without(other) if other != name else program
        ended = hands_on.run_plainly(SourceRow(program.source))
        assert all(bool(value.isfinite().all()) for value in ended.weights.values()), name


def test_a_seed_is_one_program_for_every_strategy() -> None:
    assert draw(5, "ddp") == draw(5, "fsdp")
    assert draw(5).source == draw(5, "fsdp", 3).source
    assert len({draw(seed).source for seed in range(100)}) > 95


def test_what_differs_is_shown_without_what_it_differs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    import tests.differ.run as run

    program = draw(5)
    monkeypatch.setattr(
        run,
        "tried",
        lambda each: hands_on.Outcome(
            "", "ddp", 2, "wrong" if program.freedoms[0] in each.freedoms else "equal"
        ),
    )
    assert len(program.freedoms) > 1
    assert minimised(program, "wrong").freedoms == program.freedoms[:1]
    assert tried is not run.tried
