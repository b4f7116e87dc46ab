"""Parameters that `setup` has replaced refuse to be computed with, and say where the new ones are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stratagem.errors import ShardedUseError
from stratagem.strategies.replaced_parameters import ReplacedParameter, refuse_use


def replaced() -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(3, 2))
    refuse_use([parameter])
    return parameter


@pytest.mark.parametrize(
    "use",
    [
        lambda p: nn.utils.clip_grad_norm_([p], 1.0),
        lambda p: p.grad,
        lambda p: p.data,
        lambda p: p + 1,
        lambda p: torch.stack([p]),
        lambda p: p.mul_(2),
        lambda p: p.requires_grad_(False),
        lambda p: setattr(p, "grad", torch.ones(3, 2)),
    ],
)
def test_what_would_do_nothing_is_refused(use: Callable[[Any], Any]) -> None:
    with pytest.raises(ShardedUseError, match=r"shape \(3, 2\) was used that your code had before setup\(\)"):
        use(replaced())


def test_what_the_new_one_answers_alike_may_be_asked() -> None:
    parameter = replaced()
    assert (parameter.shape, parameter.numel(), parameter.dtype) == ((3, 2), 6, torch.float32)
    assert {parameter: 1}[parameter] == 1
    assert parameter.requires_grad


def test_subclasses_of_parameters_stay_what_they_are() -> None:
    class Own(nn.Parameter):
        pass

    own = Own(torch.ones(2))
    refuse_use([own])
    assert type(own) is Own
    assert type(replaced()) is ReplacedParameter
