"""What `stratagem conformance expert`, and the tests, try."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from stratagem_testing import AxisSubject
from stratagem_testing.recipe import Recipe
from torch import Tensor, nn


class SmallExperts(nn.Module):
    """Experts of two layers each, with biases.

    Args:
        experts: how many.
        width: of what goes in and comes out.
    """

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.num_experts = experts
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.up_bias = nn.Parameter(torch.randn(experts, 2 * width) / 4)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / width**0.5)

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        output = torch.zeros_like(hidden)
        for expert in range(self.num_experts):
            token, choice = torch.where(index == expert)
            inner = torch.tanh(hidden[token] @ self.up[expert] + self.up_bias[expert])
            computed = (inner @ self.down[expert]) * weights[token, choice, None]
            output = output.index_add(0, token, computed.to(output.dtype))
        return output


class SmallMixture(nn.Module):
    """A router that gives each token to two of four experts, and an expert that all tokens share."""

    def __init__(self, width: int, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = SmallExperts(experts, width)
        self.shared = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, index = self.router(tokens).softmax(-1).topk(2)
        mixed: Tensor = self.experts(tokens, index, weights) + self.shared(tokens)
        return mixed.view_as(x)


@dataclass(frozen=True)
class MixtureRecipe(Recipe):
    """A classifier with a mixture of experts."""

    def net(self) -> nn.Module:
        """Return a layer, a mixture, and a layer."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), SmallMixture(16), nn.Linear(16, 4))


SUBJECT = AxisSubject("expert", recipe=MixtureRecipe)
