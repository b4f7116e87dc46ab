"""The bugs of docs/found are still there, and the page has what the programs print: make test-libraries."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="make test-libraries has it")

PAGE = Path(__file__).parents[2] / "docs/found/index.md"


@pytest.mark.filterwarnings("ignore")  # of transformers and its libraries
@pytest.mark.parametrize(
    "program",
    ["transformers_first_label", "transformers_auxiliary_loss", "transformers_label_smoothing"],
)
def test_the_page_has_what_the_program_prints(capsys: pytest.CaptureFixture[str], program: str) -> None:
    importlib.import_module(f"tests.corpus.found.{program}").main()
    _expect_on_page([line for line in capsys.readouterr().out.splitlines() if " gradient is " in line])


def test_what_is_right_agrees_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("tests.corpus.found.trainer_on_ranks").main()
    _expect_on_page([line for line in capsys.readouterr().out.splitlines() if " on 2 ranks " in line])


def _expect_on_page(printed: list[str]) -> None:
    assert printed, "nothing was measured"
    text = PAGE.read_text(encoding="utf-8")
    assert all(line in text for line in printed), f"fixed, or changed: write docs/found again: {printed}"
