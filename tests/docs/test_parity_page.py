"""docs/parity.md is what the generator makes of the JSON, and the JSON is of the table that there is."""

import json
from pathlib import Path

import pytest

from tests.parity.cell import Outcome
from tests.parity.columns import COLUMNS
from tests.parity.expected import why_open
from tests.parity.kinds import KINDS
from tests.parity.run import described, is_expected, sentence_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator(load_generator):
    return load_generator("parity")


@pytest.fixture(scope="module")
def table(generator):
    return json.loads(generator.DATA.read_text())


def test_the_page_is_current(generator):
    assert (ROOT / "docs/parity.md").read_text() == generator.page(), "run `make parity`"
    assert all(each.is_current() for each in generator.tables()), "run `make parity`"


def test_the_tables_have_each_result(generator, table):
    shown = json.loads((ROOT / "docs/parity.json").read_text())
    names = [verdict["name"] for verdict in shown["verdicts"]]
    came = {
        (row["name"], column): (names[cell[0]], shown["texts"][cell[1]] if len(cell) == 2 else "")
        for row in shown["rows"]
        for column, cell in zip(shown["columns"], row["cells"])
    }
    titles = {kind["name"]: kind["title"] for kind in table["kinds"]}
    assert came == {
        (titles[cell["kind"]], generator.short(cell["column"])): (
            cell["verdict"],
            " ".join(cell["sentence"].split()),
        )
        for cell in table["cells"]
    }


def test_it_is_of_the_kinds_and_strategies_that_there_are(table):
    assert table["kinds"] == [described(kind) for kind in KINDS.values()], "run `make parity`"
    assert table["columns"] == list(COLUMNS), "run `make parity`"
    tried = {(cell["column"], cell["kind"]) for cell in table["cells"]}
    assert tried == {(column, kind) for column in COLUMNS for kind in KINDS}, "run `make parity`"


def test_every_cell_is_equal_or_refused_as_listed_or_known_to_be_wrong(table):
    outcomes = [Outcome(**cell) for cell in table["cells"]]
    assert [sentence_of(outcome) for outcome in outcomes if not is_expected(outcome)] == []


def test_what_is_known_to_be_wrong_is_wrong_still_and_explained(generator, table):
    verdicts = {(cell["kind"], cell["column"]): cell["verdict"] for cell in table["cells"]}
    page, titles = generator.page(), {kind.name: kind.title for kind in KINDS.values()}
    for each in table["open"]:
        assert each["reason"] == why_open(each["kind"], each["column"]), "run `make parity`"
        verdict = verdicts.get((each["kind"], each["column"]))
        if verdict:
            assert generator.MARKS[verdict] == "✗", f"take {each} off OPEN: it is {verdict}"
            assert f"| {titles[each['kind']]} | {generator.short(each['column'])} | {verdict}: " in page
            assert f"| {each['reason']} |" in page
    assert "not known yet" not in page


def test_the_page_tells_what_is_neither(generator, table, tmp_path, monkeypatch):
    worse = {**table, "cells": [dict(cell) for cell in table["cells"]]}
    worse["cells"][0] |= {"verdict": "wrong", "sentence": "w is 1.0 of its update away"}
    monkeypatch.setattr(generator, "DATA", tmp_path / "parity.json")
    generator.DATA.write_text(json.dumps(worse))
    page = generator.page()
    assert "| strategy | ✓ equal | – refused | ✗ wrong |" in page
    assert "| wrong: `w is 1.0 of its update away` | not known yet |" in page
