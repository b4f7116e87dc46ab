"""`Bucket`: gradients that are sent in one message."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

BUCKET = 2 * 2**20
"""Elements in one message, at most, unless a single gradient has more."""
POLL_S = 5e-5
"""How often to see whether a message has come; Horovod looks for messages each millisecond itself."""


class Bucket:
    """Parameters whose gradients are averaged together, always in the same order: so do sums give the same bits.

    Args:
        hvd: the module `horovod.torch`, initialized.
        name: of the message, the same on all ranks.
        parameters: by name; of one device, and sent in one dtype.
        dtype: which.
    """

    def __init__(
        self, hvd: Any, name: str, parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
    ) -> None:
        self._hvd, self._name, self._dtype = hvd, name, dtype
        self.parameters = parameters
        self._ready: set[str] = set()
        self._expected = 0
        self._sent: tuple[int, list[nn.Parameter]] | None = None

    def add(self, name: str) -> bool:
        """Note that backward has computed a gradient; send all when it was the last. False if that one was noted."""
        if name in self._ready or self._sent is not None:
            return False
        self._ready.add(name)
        if len(self._ready) >= self._expected:  # as many as the last time: others may be frozen by now
            self._expected = sum(parameter.requires_grad for parameter in self.parameters.values())
            if len(self._ready) == self._expected:
                self.send()
        return True

    def send(self) -> None:
        """Send what there is of the gradients, and zeros for others; nothing if that was done. Doesn't wait."""
        trained = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
        if self._sent is not None or not trained:
            return
        self._expected = len(trained)
        # At its end the message says of which there are any.
        has_one = torch.tensor([p.grad is not None for p in trained], dtype=self._dtype)
        parts = [_real(p if p.grad is None else p.grad).reshape(-1).to(self._dtype) for p in trained]
        parts = [torch.zeros_like(part) if p.grad is None else part for p, part in zip(trained, parts)]
        message = torch.cat([*parts, has_one.to(parts[0].device)])
        handle = self._hvd.allreduce_async_(message, name=self._name, op=self._hvd.Average)
        self._sent = handle, trained

    def take(self) -> None:
        """Wait for the means, and fill the gradients with them."""
        if self._sent is None:
            return
        handle, trained = self._sent
        # Horovod's own waiting keeps a core busy, which may be the one that its thread needs.
        while not self._hvd.poll(handle):
            time.sleep(POLL_S)
        mean = self._hvd.synchronize(handle)
        *parts, anywhere = mean.split([*(_real(p).numel() for p in trained), len(trained)])
        for parameter, part, share in zip(trained, parts, anywhere.tolist()):
            if share == 0:  # no rank's backward reached it
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            target = _real(parameter.grad)
            target.copy_(part.view(target.shape))

    def clear(self) -> None:
        """Begin again with the next backward."""
        self._ready.clear()
        self._sent = None


def buckets(hvd: Any, name: str, parameters: Mapping[str, nn.Parameter], fp16: bool) -> Iterator[Bucket]:
    """Yield buckets of parameters in the order in which backward is likely to come to them.

    Args:
        hvd: the module `horovod.torch`, initialized.
        name: beginning of the messages' names.
        parameters: by name, in the order of forward.
        fp16: send real gradients as float16.
    """
    kinds: dict[tuple[torch.device, torch.dtype], dict[str, nn.Parameter]] = {}
    for each, parameter in reversed([*parameters.items()]):
        if parameter.is_floating_point() or parameter.is_complex():
            kinds.setdefault((parameter.device, _sent_dtype(parameter, fp16)), {})[each] = parameter
    count = 0
    for (_, dtype), found in kinds.items():
        bucket: dict[str, nn.Parameter] = {}
        size = 0
        for each, parameter in found.items():
            if bucket and size + parameter.numel() > BUCKET:
                yield Bucket(hvd, f"{name} {count}", bucket, dtype)
                bucket, size, count = {}, 0, count + 1
            bucket[each] = parameter
            size += parameter.numel()
        yield Bucket(hvd, f"{name} {count}", bucket, dtype)
        count += 1


def _sent_dtype(parameter: torch.Tensor, fp16: bool) -> torch.dtype:
    if parameter.is_complex():
        return parameter.real.dtype
    if fp16:
        return torch.float16
    return (
        torch.float32 if parameter.dtype == torch.bfloat16 else parameter.dtype
    )  # Horovod doesn't know bfloat16


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
