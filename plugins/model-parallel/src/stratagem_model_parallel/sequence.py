"""Sequence parallelism: between attention and feed-forward, each rank has a shard of the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from stratagem.errors import DataError

INPUTS = ("hidden_states", "x", "input", "src")
"""Keywords with which blocks may get their activations."""


def relaid(x: torch.Tensor, mesh: DeviceMesh, before: Placement, after: Placement) -> DTensor:
    """Return a DTensor with placement `after` from the local tensor `x` with placement `before`. Collective."""
    whole = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [before], run_check=False)
    return whole.redistribute(placements=[after])


class WholeInput(ParallelStyle):
    """Several layers of a module share one full input, so that its gradient is summed over ranks only once.

    Args:
        sequence_dim: the dimension along which the input is sharded; None if it isn't.
    """

    def __init__(self, sequence_dim: int | None) -> None:
        super().__init__()
        self.sequence_dim = sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        before = Replicate() if self.sequence_dim is None else Shard(self.sequence_dim)

        def taken(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return _with_first(args, kwargs, lambda x: relaid(x, device_mesh, before, Replicate()))

        module.register_forward_pre_hook(taken, with_kwargs=True)
        return module


class EnterSequence(ParallelStyle):
    """A block that gets the full sequence and shards it.

    Args:
        sequence_dim: of the block's first input.
    """

    def __init__(self, sequence_dim: int) -> None:
        super().__init__()
        self.sequence_dim = sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def cut(x: torch.Tensor) -> torch.Tensor:
            length, size = x.shape[self.sequence_dim], device_mesh.size()
            if length % size:
                raise DataError(
                    f"sequence_parallel cuts sequences in {size} equal parts, and this one has {length} tokens: pad "
                    f"them to a multiple of {size}, or set sequence_parallel=False"
                )
            return relaid(x, device_mesh, Replicate(), Shard(self.sequence_dim)).to_local()

        def taken(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return _with_first(args, kwargs, cut)

        module.register_forward_pre_hook(taken, with_kwargs=True)
        return module


class LeaveSequence(ParallelStyle):
    """A block that computes a shard of the sequence and gathers its output.

    Args:
        sequence_dim: of the block's output, or of the first of its outputs.
    """

    def __init__(self, sequence_dim: int) -> None:
        super().__init__()
        self.sequence_dim = sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def given(module: nn.Module, args: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            whole = relaid(first, device_mesh, Shard(self.sequence_dim), Replicate()).to_local()
            return (whole, *output[1:]) if isinstance(output, tuple) else whole

        module.register_forward_hook(given)
        return module


def _with_first(args: tuple[Any, ...], kwargs: dict[str, Any], change: Any) -> tuple[Any, Any]:
    """Change the activations among a call's arguments: the first one, or the first of `INPUTS`."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    name = next((name for name in INPUTS if name in kwargs), None)
    return args, kwargs if name is None else {**kwargs, name: change(kwargs[name])}
