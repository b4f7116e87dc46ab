"""Runs that are saved on the way under one strategy and go on under another, as the same run in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly
from stratagem_testing.workers import shared_workers
from tensor_models import go_on, save_on_the_way, tensors_at

TOLERANCE = 1e-5


@dataclass
class MovedRuns:
    """Saves a run once per strategy, for all runs that continue it."""

    subjects: Mapping[str, StrategySubject]
    recipe: Recipe
    saved_at: int
    """The optimizer step after which runs are saved; half of the recipe's."""
    folders: pytest.TempPathFactory
    _saved: dict[str, str] = field(default_factory=dict)

    def saved(self, name: str) -> str:
        """Return the checkpoint of the run under a strategy."""
        if name not in self._saved:
            folder = self.folders.mktemp("saved")
            self._saved[name] = str(folder / "checkpoint")
            subject = replace(self.subjects[name], folder=str(folder))
            subject.run(save_on_the_way, self.recipe, self.saved_at, self._saved[name])
        return self._saved[name]

    def goes_on(self, before: str, after: str, folder: Path) -> None:
        """Expect a run that was saved under one strategy to end under another as in one process."""
        subject = replace(self.subjects[after], folder=str(folder))
        ranks = subject.run(go_on, self.recipe, self.saved(before))
        plain = plainly(self.recipe, subject.shares())
        batches = self.saved_at * self.recipe.accumulate
        for trained in ranks:
            assert len(trained.losses) == len(plain.losses) - batches
            trained.losses[:0] = plain.losses[:batches]
            trained.rates = plain.rates
        expect_same(ranks, plain, TOLERANCE)

    def has_the_tensors_of(self, name: str, other: str, among: str) -> None:
        """Expect checkpoints of the run under two strategies to have the same tensors, `among` them moments."""
        ours, theirs = (shared_workers().run(1, tensors_at, self.saved(each))[0] for each in (name, other))
        assert ours.keys() == theirs.keys()
        assert any(key.endswith(among) for key in ours)
        for key, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[key], atol=2e-6, rtol=1e-4, msg=key)
