"""torchmetrics still has what the trainer uses of its private names, with the same meaning."""

from __future__ import annotations

import torch
from stratagem_trainer.metrics import torchmetrics_private as private
from torchmetrics import MeanMetric


def test_states_move_from_one_metric_to_another():
    metric, other = MeanMetric(), MeanMetric()
    assert private.value_of_batch(metric) is None
    metric(torch.tensor([2.0, 4.0]))
    metric(torch.tensor([9.0]))
    assert float(private.value_of_batch(metric)) == 9.0
    assert private.count_of_updates(metric) == 2
    states = {name: getattr(metric, name) for name in private.reductions_of(metric)}
    other(torch.tensor([1.0]))
    other.compute()
    private.set_states(other, states, 2)
    assert float(other.compute()) == 5.0
