"""GPT-2 of Hugging Face's transformers, its embedding and its head one matrix, as in plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from language_models import LanguageModel, train_models
from stratagem_testing import StrategySubject
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly
from stratagem_xla.conformance import FSDP, XLA

pytest.importorskip("transformers")
TOLERANCE = 1e-5

pytestmark = pytest.mark.timeout(360)


@pytest.mark.parametrize("subject", [XLA.at(2), FSDP.at(2)], ids=["xla", "xla_fsdp"])
def test_losses_and_weights_equal_plain_torch(subject: StrategySubject, tmp_path: Path) -> None:
    recipe = LanguageModel(model="gpt2", steps=6)
    ranks = replace(subject, folder=str(tmp_path)).run(train_models, [recipe], timeout_s=240)[0]
    expect_same(ranks, plainly(recipe, 1), TOLERANCE)
