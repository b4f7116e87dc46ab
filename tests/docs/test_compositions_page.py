"""docs/compositions.md is what the generator makes of the JSON, which has every two, three and four axes."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from tests.compositions.check import AXES, CHECKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator(load_generator):
    return load_generator("compositions")


def test_the_page_is_current(generator):
    assert (ROOT / "docs/compositions.md").read_text() == generator.page(), "run `make compositions`"


def test_every_two_three_and_four_axes_were_run(generator):
    data = json.loads(generator.DATA.read_text())
    every = {"+".join(axes) for count in (2, 3, 4) for axes in combinations(AXES, count)}
    assert every <= set(data["cells"]), "run `make compositions`"
    assert [each["name"] for each in data["checks"]] == [check.name for check in CHECKS]
    for axes, cells in data["cells"].items():
        assert list(cells) == [check.name for check in CHECKS], axes
        for check in CHECKS:
            assert cells[check.name].get("difference", 0) <= check.tolerance, (axes, check.name)


def test_refusals_are_listed_once(generator, tmp_path, monkeypatch):
    data = {
        "torch": "1",
        "checks": [
            {"name": "a", "what": "A.", "tolerance": 0},
            {"name": "b", "what": "B.", "tolerance": 1e-6},
        ],
        "cells": {
            "shard+tensor": {"a": {"difference": 0.0}, "b": {"difference": 2e-7}},
            "shard+slow": {"a": {"refused": "no"}, "b": {"refused": "no"}},
        },
    }
    (tmp_path / "data.json").write_text(json.dumps(data))
    monkeypatch.setattr(generator, "DATA", tmp_path / "data.json")
    page = generator.page()
    assert "| `shard=2+tensor=2` | equal | 2e-07 |" in page
    assert "| `shard=2+slow=2` | refused (1) | refused (1) |" in page
    assert page.endswith("1. no\n")
