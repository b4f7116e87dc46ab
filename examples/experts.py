"""Expert parallelism: the language model of bytes with eight experts in each block, which are split among ranks.

stratagem fit examples/experts.py:MixtureModel --max-steps 100 --strategy expert=2 --accelerator cpu --devices 2
stratagem fit examples/experts.py:MixtureModel --max-steps 100 --strategy shard=2+expert=2 --accelerator cpu \
  --devices 4
"""

from __future__ import annotations

from typing import Any

import torch
from language_model import Block, ByteModel
from tensor_parallel import WhoHasWhat
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem


class Experts(nn.Module):
    """Feed-forward layers, one of each for an expert.

    The axis `expert` recognises such a module by the end of its class's name, by parameters whose first dimension is
    the experts, and by what its forward takes.
    """

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.num_experts = experts
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts.

        Args:
            hidden: (tokens, width).
            index: (tokens, k), numbers of experts.
            weights: (tokens, k).
        """
        output = torch.zeros_like(hidden)
        for expert in index.unique().tolist():
            token, choice = torch.where(index == expert)
            inner = F.gelu(hidden[token] @ self.up[expert])
            computed = inner @ self.down[expert] * weights[token, choice, None]
            output = output.index_add(0, token, computed.to(output.dtype))  # autocast computes in bfloat16
        return output


class Mixture(nn.Module):
    """A router gives each token to two experts, and keeps the loss by which it learns to balance them."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, width, 2 * width)
        self.imbalance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        shares = self.router(tokens).softmax(-1)
        weights, index = shares.topk(2)
        given = F.one_hot(index, shares.shape[1]).sum(1).float().mean(0)
        self.imbalance = shares.shape[1] * (given * shares.mean(0)).sum()
        return self.experts(tokens, index, weights / weights.sum(-1, keepdim=True)).view_as(x)


class MixtureBlock(Block):
    """Attention, and a mixture in the place of the two linear layers."""

    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__(width, heads)
        del self.up, self.down
        self.mixture = Mixture(width, experts)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (self.split(part(y)) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(y.transpose(1, 2).flatten(2))
        return x + self.mixture(self.norm2(x))


class MixtureModel(ByteModel):
    """Predicts the next byte by two of `experts` experts in each block.

    Args:
        width: of embeddings and layers.
        layers: number of blocks.
        heads: of attention in each.
        experts: in each block.
        balance: weight of the loss that keeps experts equally busy.
        settings: those of `ByteModel`.
    """

    def __init__(
        self,
        width: int = 96,
        layers: int = 2,
        heads: int = 4,
        experts: int = 8,
        balance: float = 0.01,
        **settings: Any,
    ) -> None:
        super().__init__(width, layers, heads, **settings)
        self.balance = balance
        self.blocks = nn.ModuleList(MixtureBlock(width, heads, experts) for _ in range(layers))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss + self.balance * sum(block.mixture.imbalance for block in self.blocks)

    def configure_callbacks(self) -> list[stratagem.Callback]:
        return [WhoHasWhat()]
