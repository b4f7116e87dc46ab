"""A net of blocks with everything that is awkward to shard, on a small regression."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

WIDTH = 8


def samples(count: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 11, (count, 6), generator=generator)
    return TensorDataset(tokens, tokens.float().mean(1, keepdim=True))


class Block(nn.Module):
    """A residual block of odd sizes, so that shards are uneven, with a constant buffer."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 13)
        self.down = nn.Linear(13, width, bias=False)
        self.register_buffer("scale", torch.arange(1, width + 1) / width, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale


class Blocks(stratagem.Module):
    """Embedding and head share their weight; one block is frozen, one layer unused, one parameter a scalar."""

    def __init__(self, batch_size: int = 8, depth: int = 3, count: int = 96, lr: float = 0.01) -> None:
        super().__init__()
        self.batch_size, self.depth, self.count, self.lr = batch_size, depth, count, lr
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.build()

    def build(self) -> None:
        self.embedding = nn.Embedding(11, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(Block() for _ in range(self.depth))
        self.blocks[0].requires_grad_(False)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.out = nn.Linear(11, 1)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.statistics = nn.BatchNorm1d(WIDTH, affine=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.training:
            self.steps += 1
            # Its running statistics differ among ranks; no number of the training depends on them.
            self.statistics(x.detach().flatten(0, 1).to(self.statistics.running_mean.dtype))
        for block in self.blocks:
            x = block(x)
        return self.out(self.head(x).mean(1)) * self.gain

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        tokens, target = batch
        output = self(tokens)
        loss = F.mse_loss(output, target)
        self.log("loss", loss, sync_dist=True)
        return {"loss": loss, "output": output, "names": ["nested", {"n": 1}]}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[1]))
        self.log("seen", float(len(batch[0])), reduce_fx="sum")

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.lr)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(self.count), self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(29), self.batch_size)

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


class LateBlocks(Blocks):
    """The same net, made in `configure_model`."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        for name in [*self._modules, *self._parameters, *self._buffers]:
            delattr(self, name)

    def configure_model(self) -> None:
        torch.manual_seed(0)
        self.build()


class TwoOptimizers(Blocks):
    """Two optimizers step together."""

    def configure_optimizers(self) -> Any:
        first = [p for p in self.blocks.parameters() if p.requires_grad]
        rest = [self.embedding.weight, *self.out.parameters(), self.gain]
        return [torch.optim.SGD(first, lr=0.05, momentum=0.9), torch.optim.Adam(rest, lr=0.01)]
