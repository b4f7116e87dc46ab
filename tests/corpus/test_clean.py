"""Right programs under strategies are never said to differ: some of `make corpus-clean`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.corpus.clean import (
    PAGE,
    RESULTS,
    STRATEGIES,
    make_references,
    run_strategy,
    section,
)
from tests.corpus.clean_models import MODELS
from tests.support.wrong_clean_runs import fail_in_one_rank, train_faster

SOME = ("ThreeLayers", "Tied", "FrozenMiddle", "LanguageModel", "MixedLanguageModel", "Separable")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    make_references(SOME, folder)
    return folder


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_some_are_not_said_to_differ(references: Path, strategy: str) -> None:
    runs = run_strategy(strategy, SOME, references)
    assert [each.model for each in runs] == list(SOME)
    assert [(each.said, each.alarms, each.left_out) for each in runs] == [("", (), 0)] * len(SOME)


def test_another_learning_rate_is_an_alarm(references: Path) -> None:
    runs = run_strategy("ddp", SOME[:3], references, train_faster)
    assert all(each.alarms and "its update" in each.alarms[0] for each in runs), runs


def test_a_failure_is_no_clean_run(references: Path) -> None:
    runs = run_strategy("ddp", SOME[:3], references, fail_in_one_rank)
    assert [each.is_right for each in runs] == [True, False, True]


def test_there_are_enough_runs() -> None:
    assert len(MODELS) == 50
    assert len(MODELS) * len(STRATEGIES) >= 500


def test_the_page_has_the_kept_results() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert list(found["strategies"]) == list(STRATEGIES)
    assert " 0 false alarms" in found["all"]
    assert PAGE.read_text(encoding="utf-8").endswith(section())
