"""What a training step returned is read the same way, whichever form it has."""

import pytest
import torch

from stratagem import LossSum
from stratagem.errors import DataError
from stratagem.strategies.loss_sum import loss_of, weight_of, weight_on

SUM = torch.tensor(6.0, requires_grad=True)
CPU = torch.device("cpu")


@pytest.mark.parametrize("weight", [4, torch.tensor([[4]])], ids=["number", "tensor"])
def test_the_mean_has_no_graph(weight):
    mean = LossSum(SUM, weight).mean()
    assert (mean.item(), mean.requires_grad) == (1.5, False)


def test_the_mean_of_nothing_is_zero():
    assert LossSum(torch.tensor(0.0), 0).mean().item() == 0


@pytest.mark.parametrize(
    ("output", "weight"),
    [
        (SUM, None),
        ({"loss": SUM}, None),
        ({"loss": SUM, "weight": 4}, 4),
        (LossSum(SUM, 4), 4),
    ],
    ids=["tensor", "dict", "dict with weight", "LossSum"],
)
def test_loss_and_weight_of_each_form(output, weight):
    assert loss_of(output) is SUM
    assert weight_of(output) == weight


def test_a_skipped_batch_has_neither():
    assert (loss_of(None), weight_of(None)) == (None, None)


@pytest.mark.parametrize(
    ("output", "got"),
    [
        (3.0, "float without a loss"),
        ({"weight": 4}, "dict without a loss"),
        (LossSum(3.0, 4), 'a "loss" that is float'),
    ],
    ids=["float", "no key", "float in LossSum"],
)
def test_what_has_no_loss_is_refused(output, got):
    with pytest.raises(DataError, match=got):
        loss_of(output)


def test_a_weight_becomes_a_wide_scalar_without_a_graph():
    for weight in (3, torch.tensor([3.0], dtype=torch.float16, requires_grad=True)):
        scalar = weight_on(weight, CPU)
        assert (scalar.shape, scalar.dtype, scalar.requires_grad) == ((), torch.float64, False)
        assert scalar.item() == 3


@pytest.mark.parametrize(
    "weight",
    [-1, float("inf"), float("nan"), "3", torch.ones(2), torch.tensor(1j), torch.tensor(-1.0)],
    ids=str,
)
def test_what_is_no_weight_is_refused(weight):
    with pytest.raises(DataError, match="weight of a loss is"):
        weight_on(weight, CPU)
