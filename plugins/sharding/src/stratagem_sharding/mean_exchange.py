"""Means over ranks that are computed in the background of training, sent in a smaller dtype if wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["BLOCK", "SENT_AS", "MeanExchange", "Residuals", "decoded", "encoded", "padded"]

BLOCK = 256
"""Elements that share one scale in int8."""
SENT_AS = {"fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
"""Smaller dtypes that an exchange may send instead of float32 or float64."""


@dataclass
class Residuals:
    """Rounding errors of past exchanges of one tensor (error feedback). The next exchange adds them to its message.

    Source: 1-bit Adam (Tang et al., https://arxiv.org/abs/2102.02888), algorithm 1: worker and server errors.
    """

    own: torch.Tensor | None = None
    """Residual of this rank's values, float32, one row per rank; None before the first exchange."""
    mean: torch.Tensor | None = None
    """Residual of this rank's chunk of the mean, float32, one row."""


class MeanExchange:
    """The asynchronous mean of a flat tensor over ranks. Creating one and calling its methods is collective.

    In a smaller dtype, each rank receives one chunk from every rank, sums the chunks in float32, and sends the mean
    of its chunk to all ranks. Each rank sends 2 × (n - 1) / n times the elements, as in an all-reduce of n ranks. The
    result is bitwise equal on all ranks.

    Args:
        flat: float32 or float64, on a device that the group's backend supports. The caller must not use it
            afterwards.
        group: the process group; None for a single rank.
        sent_as: a key of `SENT_AS`, or None for the dtype of `flat`.
        residuals: of earlier exchanges of this tensor; read and updated. Not used if `sent_as` is None.
    """

    def __init__(
        self, flat: torch.Tensor, group: Any, sent_as: str | None, residuals: Residuals | None = None
    ) -> None:
        self._flat, self._group, self._sent_as, self._residuals = flat, group, sent_as, residuals
        self._size = 1 if group is None else dist.get_world_size(group)
        self._work: Any = None
        self._received = flat
        self._has_advanced = sent_as is None
        if group is None:
            self._has_advanced = True
        elif sent_as is None:
            self._work = dist.all_reduce(flat, group=group, async_op=True)
        else:
            rows = padded(flat.float(), self._size).view(self._size, -1)
            if residuals is not None and residuals.own is not None:
                rows = rows + residuals.own
            self._sent = encoded(rows, sent_as)
            if residuals is not None:
                residuals.own = rows - decoded(self._sent, sent_as)
            self._received = torch.empty_like(self._sent)
            self._work = dist.all_to_all_single(self._received, self._sent, group=group, async_op=True)

    def advance(self) -> None:
        """Wait for the first of two messages, and send the second. Does nothing if there is no second one to send."""
        if self._has_advanced or self._sent_as is None:
            return
        self._work.wait()
        mean, residuals = decoded(self._received, self._sent_as).mean(0, keepdim=True), self._residuals
        if residuals is not None and residuals.mean is not None:
            mean += residuals.mean
        self._sent = encoded(mean, self._sent_as)
        if residuals is not None:
            residuals.mean = mean - decoded(self._sent, self._sent_as)
        self._received = self._received.new_empty((self._size, self._sent.shape[1]))
        rows = list(torch.split(self._received, 1))
        self._work = dist.all_gather(rows, self._sent, group=self._group, async_op=True)
        self._has_advanced = True

    def result(self) -> torch.Tensor:
        """Wait for the mean, and return it in the shape and dtype of `flat`."""
        self.advance()
        if self._work is None:
            return self._flat
        self._work.wait()
        if self._sent_as is None:
            self._flat.div_(self._size)
        else:
            whole = decoded(self._received, self._sent_as).reshape(-1)
            self._flat = whole[: self._flat.numel()].to(self._flat.dtype)
        self._work = None
        return self._flat


def encoded(rows: torch.Tensor, sent_as: str) -> torch.Tensor:
    """Encode float32 rows, each a multiple of `BLOCK` elements, as rows of bytes.

    In int8 the error of an element is at most 1/254 of the largest absolute value in its block.
    """
    if sent_as != "int8":
        return rows.to(SENT_AS[sent_as]).view(torch.uint8)
    blocks = rows.view(rows.shape[0], -1, BLOCK)
    scales = blocks.abs().amax(-1) / 127
    codes = (blocks / scales.where(scales != 0, 1).unsqueeze(-1)).round_().to(torch.int8)
    return torch.cat([codes.view(rows.shape).view(torch.uint8), scales.view(torch.uint8)], dim=1)


def decoded(rows: torch.Tensor, sent_as: str) -> torch.Tensor:
    """Return the rounded float32 rows from the result of `encoded`."""
    if sent_as != "int8":
        return rows.view(SENT_AS[sent_as]).float()
    blocks = rows.shape[1] // (BLOCK + 4)
    codes, scales = torch.split(rows, [blocks * BLOCK, blocks * 4], dim=1)
    values = codes.view(torch.int8).reshape(rows.shape[0], blocks, BLOCK).float()
    values *= scales.contiguous().view(torch.float32).unsqueeze(-1)
    return values.view(rows.shape[0], -1)


def padded(flat: torch.Tensor, count: int) -> torch.Tensor:
    """Return `flat` padded with zeros, so that it splits into `count` rows of a multiple of `BLOCK` elements."""
    missing = -flat.numel() % (count * BLOCK)
    return torch.nn.functional.pad(flat, (0, missing))
