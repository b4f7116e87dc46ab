"""docs/conformance.md is what the generator makes of the JSON, and knows every check of a strategy."""

import importlib.util
import json
from pathlib import Path

import pytest

from stratagem.offered import OFFERED
from stratagem.testing.strategies import STRATEGY_CHECKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("conformance_page", ROOT / "docs/gen/conformance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(generator):
    assert (ROOT / "docs/conformance.md").read_text() == generator.page(), "run `make conformance`"


def test_every_strategy_on_it_passes_every_check_there_is(generator):
    reports = json.loads(generator.DATA.read_text())
    names = {check.name for check in STRATEGY_CHECKS}
    claims = {check.name: check.claim for check in STRATEGY_CHECKS}
    for report in reports:
        assert report["name"] in OFFERED["strategy"]
        assert {check["check"] for check in report["checks"]} == names, "run `make conformance`"
        assert all(check["claim"] == claims[check["check"]] for check in report["checks"])
        assert report["failed"] == 0, report["name"]
    assert {"single", "ddp"} <= {report["name"] for report in reports}
