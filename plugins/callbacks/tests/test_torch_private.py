"""Torch still has what pruning uses of its private names, with the same meaning."""

from __future__ import annotations

import torch
from stratagem_callbacks import torch_private as private
from torch import nn
from torch.nn.utils import prune


def test_a_second_mask_is_within_the_first():
    layer = nn.Linear(8, 1)
    for amount in (0.5, 0.5):
        prune.l1_unstructured(layer, "weight", amount)
    values = layer.weight_orig.detach()
    mask = torch.ones_like(values)
    for _ in range(2):
        mask = private.pruning_mask(prune.L1Unstructured(0.5), values, mask)
    assert torch.equal(mask, layer.weight_mask)
    assert int(mask.sum()) == 2
