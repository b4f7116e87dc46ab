"""What loops have in common: the loss in what a step returned, and gradients dropped as the user says."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stratagem.errors import DataError
from stratagem.strategies.loss_sum import LossSum, loss_of, weight_of
from stratagem.strategies.stepping import drop_gradients

LOSS = torch.ones(())


class Two:
    """As what a strategy has prepared: two optimizers, of which the second has a weight without a gradient."""

    def __init__(self):
        self.first, self.second, self.unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
        self.loss_weights = SimpleNamespace(drop=lambda index: None)
        groups = [[self.first]], [[self.second], [self.unused]]
        self.optimizers = [
            SimpleNamespace(param_groups=[{"params": group} for group in each]) for each in groups
        ]
        for parameter in (self.first, self.second):
            parameter.grad = torch.full((2,), 3.0)

    def zero_grad(self, index):
        for group in self.optimizers[index].param_groups:
            for parameter in group["params"]:
                parameter.grad = None


@pytest.mark.parametrize(
    ("returned", "loss"), [(LOSS, LOSS), ({"loss": LOSS}, LOSS), (LossSum(LOSS, 3), LOSS), (None, None)]
)
def test_the_loss_is_found(returned, loss):
    assert loss_of(returned) is loss


@pytest.mark.parametrize(
    ("returned", "weight"),
    [
        (LOSS, None),
        ({"loss": LOSS}, None),
        ({"loss": LOSS, "weight": 3}, 3),
        (LossSum(LOSS, 3), 3),
        (None, None),
    ],
)
def test_the_weight_is_found(returned, weight):
    assert weight_of(returned) == weight


@pytest.mark.parametrize("returned", [{"los": LOSS}, (), 3.0, {"loss": 3.0}])
def test_what_has_no_loss_is_refused(returned):
    with pytest.raises(DataError, match="training_step returned"):
        loss_of(returned)


def test_gradients_are_dropped():
    prepared = Two()
    drop_gradients(prepared, 1, set_to_none=True)
    assert prepared.second.grad is None
    assert prepared.first.grad.tolist() == [3, 3]


def test_gradients_are_zeros_where_there_were_some():
    prepared = Two()
    gradient = prepared.second.grad
    drop_gradients(prepared, 1, set_to_none=False)
    assert prepared.second.grad.tolist() == [0, 0]
    assert prepared.second.grad.data_ptr() == gradient.data_ptr()
    assert prepared.unused.grad is None
    assert prepared.first.grad.tolist() == [3, 3]
