"""What messages call an optimizer."""

from __future__ import annotations

import torch

from stratagem.precision.optimizer_name import optimizer_name


def test_an_optimizer_that_stands_for_another_has_its_name() -> None:
    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    outer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert optimizer_name(outer) == "Adam"
    outer.whole = inner  # type: ignore[attr-defined]  # as optimizers that wrap one have it
    assert optimizer_name(outer) == "SGD"
