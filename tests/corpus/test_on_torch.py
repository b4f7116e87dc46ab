"""Bugs of programs on PyTorch are named, and right programs agree."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.corpus.measure import failures

MODULES = ("on_torch", "on_fsdp", "on_resume", "on_experts", "on_tensor_parallel")


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_all_are_named(tmp_path: Path, module: str) -> None:
    bugs = importlib.import_module(f"tests.corpus.{module}").BUGS
    assert failures(module, bugs, tmp_path) == []
