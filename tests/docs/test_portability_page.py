"""docs/portability.md is what the generator makes of the JSON, and the JSON is of the columns that there are."""

import json
from pathlib import Path

import pytest

from tests.portability.columns import column_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator(load_generator):
    return load_generator("portability")


def test_the_page_is_current(generator):
    assert (ROOT / "docs/portability.md").read_text() == generator.page(), "run `make portability`"
    assert generator.table().is_current(), "run `make portability`"


def test_each_column_has_tried_each(generator):
    cells = json.loads(generator.DATA.read_text())["cells"]
    names = set(column_names())
    assert set(cells) == names, "run `make portability`"
    assert all(set(of_reader) == names for of_reader in cells.values()), "run `make portability`"


def test_failures_are_listed_with_their_reasons(generator, tmp_path, monkeypatch):
    data = {
        "torch": {"a ×1": "1", "b ×2": "2"},
        "python": "3",
        "cells": {"a ×1": {"b ×2": "`off`"}, "b ×2": {"b ×2": 0}},
    }
    (tmp_path / "data.json").write_text(json.dumps(data))
    monkeypatch.setattr(generator, "DATA", tmp_path / "data.json")
    page = generator.page()
    assert "| b | 2 | 1 | 0e+00 |" in page
    assert "all but 1 resume" in page
    by_reader = {row.name: row.cells for row in generator.table().rows}
    assert {name: cells["b"].verdict for name, cells in by_reader.items()} == {
        "a": "don't resume",
        "b": "resume",
    }
    assert "- `'off'`: b ×2 → a ×1" in page
