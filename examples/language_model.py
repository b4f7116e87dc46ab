"""A language model of bytes: a small transformer reads the sources of Python's standard library.

stratagem fit examples/language_model.py:ByteModel --max-steps 300 --set trainer.val_check_interval=100
stratagem fit examples/language_model.py:ByteModel --max-steps 300 --strategy ddp --accelerator cpu --devices 2
stratagem fit examples/language_model.py:ByteModel --max-steps 300 --precision bf16-mixed --set model.layers=4
"""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset

import stratagem


class Block(nn.Module):
    """Attention to what came before, then two linear layers, each added to what went in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.join = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (self.split(part(y)) for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def split(self, x: Tensor) -> Tensor:
        """Return (batch, heads, length, width of a head); under tensor parallelism a rank has some of the heads."""
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class ByteModel(stratagem.Module):
    """Predicts the next byte; the loss is in bits per byte, of which plain guessing needs 8.

    Args:
        width: of embeddings and layers.
        layers: number of blocks.
        heads: of attention in each.
        context: bytes that are read at once.
        batch_size: texts per step and process.
        lr: learning rate after a warm-up of 20 steps.
    """

    def __init__(
        self,
        width: int = 96,
        layers: int = 2,
        heads: int = 4,
        context: int = 128,
        batch_size: int = 16,
        lr: float = 3e-3,
    ) -> None:
        super().__init__()
        self.context, self.batch_size, self.lr = context, batch_size, lr
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits of the next byte, (batch, length, 256), for `text` of (batch, length)."""
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def bits_per_byte(self, text: Tensor) -> Tensor:
        return F.cross_entropy(self(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()) / math.log(2)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.bits_per_byte(batch)
        self.log("train_bits", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_bits", self.bits_per_byte(batch), prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}

    def train_dataloader(self) -> DataLoader:
        texts = StandardLibrary(self.context + 1)
        # Every 20th text is kept for validation.
        return DataLoader(
            Subset(texts, [i for i in range(len(texts)) if i % 20]), self.batch_size, shuffle=True
        )

    def val_dataloader(self) -> DataLoader:
        texts = StandardLibrary(self.context + 1)
        return DataLoader(Subset(texts, range(0, len(texts), 20)[:128]), self.batch_size)


class StandardLibrary(Dataset):
    """The modules at the top of Python's standard library, one after the other, in texts of `length` bytes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return len(standard_library()) // self.length

    def __getitem__(self, index: int) -> Tensor:
        return standard_library()[index * self.length :][: self.length].long()


@cache
def standard_library() -> Tensor:
    """Some 5 MB of source code, as bytes."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
