"""A language model of texts that differ in length: paragraphs of source code, padded to the longest of their batch.

stratagem fit examples/unequal_texts.py:ParagraphModel --max-steps 300 --strategy ddp --accelerator cpu --devices 2

Batches have different numbers of bytes to predict. The loss is a sum with its weight, so that each byte counts the
same, on whichever rank and in whichever micro-batch it is: docs/guides/losses.md.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from language_model import ByteModel, standard_library
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from stratagem import LossSum

PADDING = 0
"""A byte that no source code has."""


class ParagraphModel(ByteModel):
    """Predicts the next byte of a paragraph; the settings are those of `ByteModel`."""

    def summed(self, text: Tensor) -> LossSum:
        """Return the bits of all bytes that are predicted, and how many these are, for text of (batch, length)."""
        labels = text[:, 1:].flatten()
        logits = self(text[:, :-1]).flatten(0, 1)
        nats = F.cross_entropy(logits, labels, ignore_index=PADDING, reduction="sum")
        return LossSum(nats / math.log(2), labels.ne(PADDING).sum())

    def training_step(self, batch: Tensor, batch_idx: int) -> LossSum:
        loss = self.summed(batch)
        self.log("train_bits", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_bits", self.summed(batch), prog_bar=True, sync_dist=True)

    def train_dataloader(self) -> DataLoader:
        # Every 20th text is kept for validation.
        texts = [text for index, text in enumerate(paragraphs(self.context + 1)) if index % 20]
        return DataLoader(texts, self.batch_size, shuffle=True, collate_fn=padded)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(paragraphs(self.context + 1)[::20][:256], self.batch_size, collate_fn=padded)


def padded(texts: list[Tensor]) -> Tensor:
    """Return a batch of (texts, longest length)."""
    return pad_sequence(texts, batch_first=True, padding_value=PADDING)


@cache
def paragraphs(length: int) -> list[Tensor]:
    """What stands between empty lines of Python's standard library, each up to `length` bytes of it."""
    texts = bytes(standard_library().tolist()).split(b"\n\n")
    return [torch.tensor(list(text[:length])) for text in texts if len(text) > 1]
