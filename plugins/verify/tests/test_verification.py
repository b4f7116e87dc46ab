"""`verify` finds what is wrong with modules and strategies, and nothing where nothing is."""

from __future__ import annotations

import importlib.util

import pytest
from stratagem_verify.verification import QUESTIONS, verify
from verified_faults import FAULTS, WRONG_STRATEGIES, ProjectedGradients, SharesSteps, SumLoss, WrongLate
from verified_models import HEALTHY, BatchNormed, Classifier

from stratagem.errors import CombinationError, UsageError

NOTES = {
    "BatchNormed": {"loss": "SyncBatchNorm", "buffers": "SyncBatchNorm"},
    "Counting": {"loss": "draws random numbers"},
    "Gan": {"loss": "optimizes manually, and random numbers are drawn"},
    "HuggingFace": {"loss": "draws random numbers"},
    "Noisy": {"loss": "also in evaluation mode"},
    "Transformer": {"loss": "draws random numbers"},
}
"""What is reported of modules whose numbers can't be those of one process, though nothing is wrong."""

TRAINED = ("loss", "gradients", "training")
"""Questions that take no run beside those that are needed for any: asked of every faulty module."""


SHORT = ("Classifier", "BatchNormed", "Tied", "HuggingFace")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in HEALTHY]
)
def test_no_false_alarm(name):
    if name == "HuggingFace" and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers isn't installed: no Hugging Face model is tried")
    # New processes for the resumed run would import transformers three times more.
    found = verify(HEALTHY[name], "ddp", skip=["resume"] if name == "HuggingFace" else [])
    assert [finding for finding in found.findings if finding.verdict == "wrong"] == []
    notes = {each.question: each.text for each in found.findings if each.verdict == "note"}
    expected = NOTES.get(name, {})
    assert notes.keys() == expected.keys()
    for question, words in expected.items():
        assert words in notes[question]


@pytest.mark.parametrize("module", FAULTS, ids=lambda module: module.__name__)
def test_a_faulty_module_is_found(module):
    question, words = FAULTS[module]
    asked = [*TRAINED, question] if question in TRAINED else [question, "loss"]
    found = verify(module, "ddp", only=[name for name in asked if name in QUESTIONS])
    assert not found.is_right
    wrong = {each.question: each.text for each in found.findings if each.verdict == "wrong"}
    assert words in wrong[question]
    # What else is reported follows from it: of a loss that depends on its rank, gradients differ as well.
    assert wrong.keys() - {question} <= {"gradients"}


@pytest.mark.parametrize("strategy", WRONG_STRATEGIES, ids=lambda strategy: strategy.__name__)
def test_a_faulty_strategy_is_found(strategy):
    question, words = WRONG_STRATEGIES[strategy]
    found = verify(Classifier, strategy, only=[*TRAINED, question])
    wrong = {each.question: each.text for each in found.findings if each.verdict == "wrong"}
    assert words in wrong[question]


def test_a_faulty_module_s_first_difference_is_named():
    found = verify(SumLoss, "ddp", only=["loss"])
    assert found.first_difference.startswith(
        "Step 1: the gradients of all 4 parameters, first 'net.0.weight'"
    )
    assert "B's are 0.5 times A's" in found.first_difference
    assert found.to_json()["first_difference"] == found.first_difference


def test_a_fault_of_a_late_step_is_named_by_that_step():
    found = verify(Classifier, WrongLate, only=TRAINED)
    assert found.first_difference.startswith("Step 10: the gradient of parameter 'net.0.weight' differs")


def test_what_is_right_has_no_first_difference():
    assert verify(Classifier, "ddp", only=TRAINED).first_difference == ""


def test_local_gradients_are_found_where_replicas_are_equal():
    found = verify(ProjectedGradients, SharesSteps, only=["loss", "gradients"])
    verdicts = {each.question: each.verdict for each in found.findings}
    assert verdicts == {"run": "right", "loss": "wrong", "gradients": "wrong"}


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fsdp", "dp", "ddp_fp16"])
def test_no_false_alarm_under_other_strategies(strategy):
    found = verify(BatchNormed, strategy, skip=["resume"])
    assert [finding for finding in found.findings if finding.verdict == "wrong"] == []


def test_settings_are_those_of_the_trainer():
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "precision": "bf16-mixed"}
    found = verify(Classifier, "ddp", settings=settings, only=TRAINED)
    assert {finding.verdict for finding in found.findings} == {"right"}


def test_what_is_not_possible_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="there is no question 'losses'; available: data, loss"):
        verify(Classifier, "ddp", only=["losses"])
    with pytest.raises(UsageError, match="pass at least 2"):
        verify(Classifier, "ddp", steps=1)
    with pytest.raises(CombinationError, match="one device per process"):
        verify(Classifier, "single")
