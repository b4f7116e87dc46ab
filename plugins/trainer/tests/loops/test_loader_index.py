"""Which steps take the index of a loader, however they call it."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_trainer.loops.loader_index import takes_loader_index, with_loader_index


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda batch, batch_idx: None, ""),
        (lambda batch, batch_idx, dataloader_idx: None, "always"),
        (lambda batch, batch_idx, which: None, "always"),
        (lambda batch, batch_idx, a_loader=0: None, "if several"),
        (lambda batch, batch_idx, which=0: None, "if several"),
        (lambda batch, batch_idx, sample_mask: None, ""),
        (lambda batch, batch_idx, sample_mask, which: None, "always"),
        (lambda batch, batch_idx, *, which=0: None, ""),
        (lambda batch, batch_idx, **more: None, ""),
        (lambda batch, batch_idx, which=0, **more: None, "if several"),
        (lambda batch, batch_idx, which, more=0: None, "always"),
        (lambda batch, batch_idx, which=0, more=1: None, "if several"),
        (lambda batch, batch_idx, which, /: None, "always"),
        (lambda batch, batch_idx, sample_mask, which=0: None, "if several"),
        (lambda batch: None, ""),
        (lambda *given: None, "if several"),
        (lambda batch, *given, which: None, "if several"),
    ],
)
def test_what_comes_after_the_batch_and_its_own_index(step: Any, expected: str) -> None:
    assert takes_loader_index(step) == expected


def test_a_hook_gets_it_by_name_alone() -> None:
    def named(batch: Any, dataloader_idx: int = 7) -> int:
        return dataloader_idx

    def other(batch: Any, which: int = 7) -> int:
        return which

    assert [with_loader_index(named, loader)(0) for loader in (None, 0, 2)] == [0, 0, 2]
    assert with_loader_index(other, 2) is other
