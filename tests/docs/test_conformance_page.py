"""docs/conformance.md is what the generator makes of the JSON, and knows every check of a strategy."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from stratagem_testing.report import subject_names
from stratagem_testing.strategies import STRATEGY_CHECKS

from stratagem.installed.catalogue import load_catalogue
from stratagem.names.index import known_plugins

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator(load_generator):
    return load_generator("conformance")


def test_the_page_is_current(generator):
    assert (ROOT / "docs/conformance.md").read_text() == generator.page(), "run `make conformance`"
    assert generator.table().is_current(), "run `make conformance`"


def test_the_table_has_each_result_and_the_summary_counts_them(generator):
    reports = {report["name"]: report for report in json.loads(generator.DATA.read_text())}
    table = json.loads((ROOT / "docs/conformance.json").read_text())
    assert table["columns"] == list(reports)
    names = [verdict["name"] for verdict in table["verdicts"]]
    for number, strategy in enumerate(table["columns"]):
        by_check = {}
        for check in reports[strategy]["checks"]:
            by_check.setdefault(check["check"], set()).add(check["verdict"])
        counts = Counter()
        for row in table["rows"]:
            cell = row["cells"][number]
            assert (cell is None) == (row["name"] not in by_check)
            if cell is not None:
                verdict = names[cell[0]]
                assert verdict in by_check[row["name"]]
                # A check that passes or is skipped does so at every world size; reasons are reported.
                assert verdict in ("failed", "waived") or not {"failed", "waived"} & by_check[row["name"]]
                assert len(cell) == 2 or verdict == "passed"
                counts[verdict] += 1
        line = next(each for each in generator.page().splitlines() if each.startswith(f"| {strategy} |"))
        assert line.split(" | ")[1:4] == [str(counts[v] or "") for v in ("passed", "skipped", "waived")]


def test_every_strategy_on_it_passes_every_check_there_is(generator):
    reports = json.loads(generator.DATA.read_text())
    names = {check.name for check in STRATEGY_CHECKS}
    claims = {check.name: check.claim for check in STRATEGY_CHECKS}
    components = load_catalogue().of_kind("strategy")
    here = [component for component in components if not component.missing()]
    expected = {name for component in here for name in subject_names(component)}
    for report in reports:
        assert report["name"] in known_plugins().of_kind("strategy")
        tried = {check["check"] for check in report["checks"]}
        # What can't run here may have cells that are empty, as the page says.
        assert tried == names or (tried < names and report["name"] not in expected), "run `make conformance`"
        assert all(check["claim"] == claims[check["check"]] for check in report["checks"])
        assert report["failed"] == 0, report["name"]
    assert expected <= {report["name"] for report in reports}, "run `make conformance`"


def test_trying_some_keeps_what_is_known_of_others(generator, tmp_path, monkeypatch):
    known = json.loads(generator.DATA.read_text())
    again = {
        **next(report for report in known if report["name"] == "ddp"),
        "name": "ddp_fp16",
        "version": "new",
    }
    again["checks"] = [{**check, "seconds": 1.0} for check in again["checks"]]
    ask = generator.subprocess.run

    def answered(command, **how):
        if command[1] != "conformance":
            return ask(command, **how)
        assert command[2:] == ["ddp_fp16", "--json"]
        return subprocess.CompletedProcess(command, 0, json.dumps([again]))

    monkeypatch.setattr(generator.subprocess, "run", answered)
    monkeypatch.setattr(generator, "DATA", tmp_path / "conformance.json")
    generator.DATA.write_text(json.dumps(known))
    generator.run(["ddp_fp16"])
    kept = json.loads(generator.DATA.read_text())
    before = [report["name"] for report in known if report["name"] != "ddp_fp16"]
    assert [report["name"] for report in kept if report["name"] != "ddp_fp16"] == before
    assert [r["version"] for r in kept if r["name"] == "ddp_fp16"] == ["new"]
    assert not any("seconds" in check for report in kept for check in report["checks"])
    assert "| ddp_fp16 |" in generator.page()
    with pytest.raises(SystemExit, match="no strategy ddp_fp8 has"):
        generator.run(["ddp_fp8"])
