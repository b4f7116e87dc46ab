"""Calls of `stratagem diff` in tests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stratagem_cli.main import main

Captured = pytest.CaptureFixture[str]


def compared(capsys: Captured, *words: object, code: int = 1) -> dict[str, Any]:
    """Return the JSON of a comparison that ends with this exit code."""
    capsys.readouterr()
    assert main(["diff", *map(str, words), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: Captured, *words: object) -> str:
    """Return the sentence by which a call is refused."""
    capsys.readouterr()
    assert main(["diff", *map(str, words)]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())
