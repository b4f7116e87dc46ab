"""The loop that every strategy is held against: PyTorch in one process, and nothing of Stratagem."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from stratagem_testing.record import TrainingRecord
from stratagem_testing.reference import ReferenceLoop
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from tests.parity.kind import Kind, StepContext, share_of, windows
from tests.parity.kinds import KINDS


def train_plainly(name: str, shares: int) -> TrainingRecord:
    """Train a kind.

    Args:
        name: of the kind.
        shares: into how many parts a global batch is split, where the kind is `per_share`.
    """
    kind = KINDS[name]
    net = _in_precision(kind, kind.built())
    net.train()
    start = _state(net)
    made = kind.optimizers(net)
    optimizers = made if isinstance(made, list) else [made]
    loop = ReferenceLoop(
        optimizers,
        kind.schedulers(optimizers),
        max_norm=kind.max_norm,
        max_value=kind.max_value,
        closure=isinstance(optimizers[0], torch.optim.LBFGS),
    )
    parts = shares if kind.per_share else 1
    for epoch in range(kind.epochs):
        kind.on_epoch(net, epoch)
        seen = len(loop.losses)
        for window in windows(kind.batches(), kind.accumulate):
            if kind.manual:
                index = len(loop.losses)
                kind.before_batch(net, index - seen)
                _losses(kind, net, window[0], index - seen, parts, optimizers)
                loop.losses.append(0.0)
                loop.end_step()
                kind.after_batch(net, index - seen)
            else:
                _step(kind, net, loop, window, seen, parts)
        loop.end_epoch(loop.losses[seen:])
    return TrainingRecord(weights=_state(net), start=start, steps=len(loop.rates))


def _step(kind: Kind, net: nn.Module, loop: ReferenceLoop, window: Any, first: int, parts: int) -> None:
    """Make one optimizer step; kinds count micro-batches from `first`, an epoch's first one."""
    loop.step(
        window,
        lambda batch, index: _losses(kind, net, batch, index - first, parts, loop.optimizers),
        shares=parts,
        before=lambda index: kind.before_batch(net, index - first),
        after=lambda index: kind.after_batch(net, index - first),
    )


def _losses(kind: Kind, net: nn.Module, batch: Any, index: int, parts: int, optimizers: Any) -> list[Any]:
    """The losses of a global micro-batch's parts, without those that have none; manual steps have none."""
    batch = _in_precision(kind, batch)
    losses = []
    for share in range(parts):
        context = StepContext(index, share, parts, lambda tensor: tensor[None], optimizers)
        part = share_of(batch, share, parts)
        mixed = kind.precision == "bf16-mixed"
        with torch.autocast("cpu", torch.bfloat16) if mixed else contextlib.nullcontext():
            if kind.manual:
                kind.manual_step(net, part, context)
                continue
            output = kind.loss(net, part, context)
        loss = output["loss"] if isinstance(output, dict) else output
        if loss is not None:
            losses.append(loss)
    return losses


def _in_precision(kind: Kind, value: Any) -> Any:
    dtype = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(kind.precision)
    if dtype is None:
        return value
    if isinstance(value, nn.Module):
        return value.to(dtype)
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, value)


def _state(net: nn.Module) -> dict[str, Tensor]:
    state = {name: value for name, value in net.state_dict().items() if isinstance(value, Tensor)}
    return {name: value.detach().clone() for name, value in state.items() if not is_lazy(value)}
