"""docs/portability.md is what the generator makes of the JSON, and the JSON is of the columns that there are."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.portability.columns import column_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("portability_page", ROOT / "docs/gen/portability.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(generator):
    assert (ROOT / "docs/portability.md").read_text() == generator.page(), "run `make portability`"


def test_each_column_has_tried_each(generator):
    cells = json.loads(generator.DATA.read_text())["cells"]
    names = set(column_names())
    assert set(cells) == names, "run `make portability`"
    assert all(set(of_reader) == names for of_reader in cells.values()), "run `make portability`"


def test_what_fails_is_told_with_its_reason(generator, tmp_path, monkeypatch):
    data = {
        "torch": {"a ×1": "1", "b ×2": "2"},
        "python": "3",
        "cells": {"a ×1": {"b ×2": "`off`"}, "b ×2": {"b ×2": 0}},
    }
    (tmp_path / "data.json").write_text(json.dumps(data))
    monkeypatch.setattr(generator, "DATA", tmp_path / "data.json")
    page = generator.page()
    assert "| **a** |  | ✗ 1 of 1 |" in page
    assert "| **b** |  | ✓ 1 |" in page
    assert "- `'off'`: b ×2 → a ×1" in page
