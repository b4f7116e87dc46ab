"""Losses of closures: the mean over ranks, alike on all of them."""

import pytest
import torch
from threads import on_threads

from stratagem.collectives.closures import mean_closure, mean_loss
from stratagem.collectives.local import LocalCollectives

ALONE = LocalCollectives(torch.device("cpu"))


def test_a_rank_alone_has_its_own_closure_and_loss():
    def closure():
        return 1.0

    assert mean_closure(closure, ALONE) is closure
    loss = torch.ones(1)
    assert mean_loss(loss, ALONE) is loss
    assert mean_loss(None, ALONE) is None


def test_no_closure_stays_none_on_several_ranks():
    assert on_threads(2, lambda collectives: mean_closure(None, collectives)) == [None, None]


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        ([torch.tensor(1.0, requires_grad=True), torch.tensor(2.0)], 1.5),
        ([3, 4.0], 3.5),
        ([None, torch.tensor(5.0)], 2.5),
        ([None, None], 0.0),
        ([2**40 + 1.0, 2**40 + 2.0], 2**40 + 1.5),
    ],
)
def test_all_ranks_have_the_mean(losses, mean):
    calls = []

    def run(collectives):
        def closure():
            calls.append(collectives.rank)
            return losses[collectives.rank]

        averaged = mean_closure(closure, collectives)
        assert calls.count(collectives.rank) == 0
        return averaged()

    found = on_threads(2, run)
    assert [loss.item() for loss in found] == [mean, mean]
    assert all((loss.dtype, loss.shape, loss.requires_grad) == (torch.float64, (), False) for loss in found)
    assert sorted(calls) == [0, 1]
