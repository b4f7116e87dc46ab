"""`SplitModule`: a forward that runs each part of a batch on its own device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from stratagem_sharding.chunks import ChunkLogs, merge, split
from stratagem_trainer import Module
from torch import nn

from stratagem import SetupRequest
from stratagem.errors import DataError
from stratagem.sdk.loops import weight_of
from stratagem.sdk.tensors import map_tensors
from stratagem_dp.replicas import Replica, refuse_uncopyable, replicate

_ADVICE = (
    "return what the loss needs from the step, and compute it in training_step_end (validation_step_end, "
    "test_step_end), which has the outputs of all parts; or choose strategy='ddp'"
)


class SplitModule(nn.Module):
    """Splits what it is called with over the devices of this process and merges what the parts return.

    The first part runs in the module itself, the others in copies made for this call. They run in
    turn: accelerators work in the background anyway, and the order of random numbers stays the same.

    Args:
        request: with at least one device; the `chunk_module` of its `steps` is called for each part, and the end of a
            step, where the user's module defines it, with the list of all outputs.

    Raises:
        ConfigError: the user's module has what can't be copied.
    """

    def __init__(self, request: SetupRequest) -> None:
        super().__init__()
        refuse_uncopyable(request.original_module)
        steps = request.steps
        self.chunk_module = request.module if steps is None else steps.chunk_module
        self.step_end_fns = {} if steps is None else steps.step_end_fns
        self.devices = request.devices
        self._original = (request.original_module,)  # in a tuple, so that it isn't registered a second time

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parts = split((args, kwargs), len(self.devices))
        logs = ChunkLogs()
        # All copies before the first part runs: it may change buffers.
        replicas = [replicate(self.chunk_module, device) for device in self.devices[1 : len(parts)]]
        called = [self._called(replica, device) for replica, device in zip(replicas, self.devices[1:])]
        advice = _ADVICE if len(parts) > 1 else None
        outputs: list[Any] = []
        for (module, original_module), device, (value, size) in zip(
            [(self.chunk_module, self._original[0]), *called], self.devices, parts
        ):
            part_args, part_kwargs = map_tensors(partial(_moved, device=device), value)
            logging = (
                logs.of_part(original_module, size, advice)
                if isinstance(original_module, Module)
                else nullcontext()
            )
            refusals = self._of_whole_batch(size, sum(each for _, each in parts))
            with logging, refusals, _frozen_before() if outputs else nullcontext():
                outputs.append(module(*part_args, **part_kwargs))
        for replica in replicas:
            replica.refuse_other_changes(self._original[0])
        if isinstance(self._original[0], Module):
            logs.replay(self._original[0])
        end = self.step_end_fns.get(args[0]) if self.step_end_fns else None
        return _merged(outputs, [size for _, size in parts]) if end is None else end(outputs)

    @contextmanager
    def _of_whole_batch(self, size: int, batch: int) -> Iterator[None]:
        """Say in a sentence that torch can't compute with a part's samples beside a buffer for all of the batch."""
        try:
            yield
        except RuntimeError as error:
            if size == batch or not {str(size), str(batch)}.issubset(re.findall(r"\d+", str(error))):
                raise
            for name, buffer in self._original[0].named_buffers():
                if buffer.dim() and len(buffer) == batch:
                    raise DataError(
                        f"buffer {name!r} has {batch} rows, as many as the batch has samples, and each device gets "
                        f"{size} of them or fewer (torch: {error}): give forward such states as an argument, which "
                        "is split with the batch, or choose strategy='ddp'"
                    ) from error
            raise

    def _called(self, replica: Replica, device: torch.device) -> tuple[nn.Module, nn.Module]:
        """Return copies on `device` of what is called, and of the user's module in it."""
        original_module = replica.modules[id(self._original[0])]
        if isinstance(original_module, Module):
            original_module.replica_device = device
        return replica.modules[id(self.chunk_module)], original_module


@contextmanager
def _frozen_before() -> Iterator[None]:
    """Say in a sentence what torch says of `requires_grad_` on a copy."""
    try:
        yield
    except RuntimeError as error:
        if "requires_grad flags of leaf" not in str(error):
            raise
        raise DataError(
            "the step changes requires_grad of a parameter, which its copies on other devices can't follow: "
            "change it in on_train_batch_start, or choose strategy='ddp'"
        ) from error


def _merged(outputs: list[Any], sizes: list[int]) -> Any:
    """Return the outputs of parts as one; a part that returned None adds nothing to a loss, and counts."""
    merged = merge(outputs, sizes)
    loss = merged.get("loss") if isinstance(merged, dict) else merged
    if (
        weight_of(merged) is not None
        or not isinstance(loss, torch.Tensor)
        or loss.dim() > 0
        or not loss.requires_grad
    ):
        return merged
    some = sum(size for output, size in zip(outputs, sizes) if output is not None) / sum(sizes)
    if some == 1:
        return merged
    return {**merged, "loss": loss * some} if isinstance(merged, dict) else loss * some


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=True)
