"""A small model of the next token, for benchmarks that train it beside the same by hand, and their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NextToken(nn.Module):
    """Returns the loss of predicting the next token.

    Args:
        block: makes a layer.
        layers: how many.
        width: of a token's vector.
        vocabulary: how many tokens there are.
    """

    def __init__(self, block: Callable[[], nn.Module], layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def quartiles(values: Sequence[float]) -> str:
    """The median, and the quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.3f} ({low:.3f} to {high:.3f})"
