"""Several micro-batches per optimizer step."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.same import expect_close
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import RecipeModule, expect_parity, plainly_for, train


@check
def check_accumulation(subject: StrategySubject) -> None:
    """Steps of 2 and of 4 micro-batches have the results of one process, loss by loss."""
    expect_parity(subject, Recipe(accumulate=2), Recipe(accumulate=4))


@check
def check_partial_window(subject: StrategySubject) -> None:
    """An epoch's incomplete last step is the mean over its own micro-batches, not over those of a full step."""
    # 10 micro-batches per epoch in steps of 4, 4 and 2.
    expect_parity(subject, Recipe(accumulate=4, global_batch=32, samples=80, epochs=3, steps=None))


class _InHalves(RecipeModule):
    """A module whose loader's batches are half of a rank's share of an optimizer step."""

    def train_dataloader(self) -> Any:
        return DataLoader(self.recipe.dataset(), self.batch_size // 2, shuffle=True)


@check
def check_global_batch(subject: StrategySubject) -> None:
    """With a global batch, steps have the results of one process. An epoch's last step is the mean of its samples."""
    # 9 steps of 16 samples and one of 12: micro-batches of 8 and 4 samples, over all ranks.
    recipe = Recipe(samples=156, epochs=2, steps=None)
    plain = plainly_for(subject, recipe)
    for rank, trained in enumerate(subject.run(_in_halves, recipe)):
        expect(
            trained.steps == plain.steps,
            f"rank {rank} made {trained.steps} optimizer steps, but one process {plain.steps}",
        )
        expect_close(trained.weights, plain.weights, 2 * subject.tolerance(), f"rank {rank}")


def _in_halves(subject: StrategySubject, recipe: Recipe) -> Trained:
    return train(subject, recipe, module_class=_InHalves, global_batch_size=recipe.global_batch)
