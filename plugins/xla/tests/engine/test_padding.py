"""The last batch of an epoch is filled up for a step that takes the mask of what counts, and results stay exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stratagem_xla.conformance import XLA
from xla_tasks import pad

SAMPLES = 45  # 16, 16, 13

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory):
    subject = replace(XLA.at(2), folder=str(tmp_path_factory.mktemp("padding")))
    return [subject.run(pad, masked, SAMPLES)[0] for masked in (True, False)]


def test_every_step_has_full_batches(both) -> None:
    masked, plain = both
    # In training; a step that takes no mask gets the batch as it is.
    assert masked.rows == [16] * 9
    assert plain.rows == [16, 16, 13] * 3


def test_results_are_those_without_filling_up(both) -> None:
    masked, plain = both
    assert masked.losses == pytest.approx(plain.losses, abs=2e-6)
    assert masked.mean == pytest.approx(plain.mean, abs=2e-6)
    assert masked.val_loss == pytest.approx(plain.val_loss, abs=2e-6)
    assert masked.predicted.shape == plain.predicted.shape == (SAMPLES, 4)
    torch.testing.assert_close(masked.predicted, plain.predicted, atol=1e-5, rtol=0)


def test_nothing_is_compiled_once_all_shapes_were_seen(both) -> None:
    masked, plain = both
    assert masked.compiled[2] == plain.compiled[2] == 0


def test_the_first_epoch_compiles_fewer_programs(tmp_path: Path) -> None:
    # In processes of their own: what was compiled once is kept.
    counts = []
    for masked in (True, False):
        subject = replace(XLA.at(2), folder=str(tmp_path / str(masked)))
        counts.append(sum(subject.alone(pad, masked, SAMPLES, timeout_s=240).compiled))
    assert counts[0] < counts[1]
