"""The loop that every strategy is held against: PyTorch in one process, and nothing of Stratagem."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._pytree import tree_map

from tests.parity.kind import Kind, StepContext, share_of, windows
from tests.parity.kinds import KINDS


@dataclass
class Trained:
    """What a training came to."""

    weights: dict[str, Tensor]
    """Parameters and buffers at the end, by the net's names."""
    start: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0


def train_plainly(name: str, shares: int) -> Trained:
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
    schedulers = kind.schedulers(optimizers)
    steps, losses, parts = 0, [], shares if kind.per_share else 1
    for epoch in range(kind.epochs):
        kind.on_epoch(net, epoch)
        index = 0
        for window in windows(kind.batches(), kind.accumulate):
            evaluated: list[Any] = []

            def closure(window: Any = window, first: int = index, into: list[Any] = evaluated) -> Tensor:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                total = torch.zeros(())
                for offset, batch in enumerate(window):
                    if not into:
                        kind.before_batch(net, first + offset)
                    for loss in _losses(kind, net, batch, first + offset, parts, optimizers):
                        (loss / len(window)).backward()
                        total = total + loss.detach() / (len(window) * parts)
                    if not into and offset + 1 < len(window):
                        kind.after_batch(net, first + offset)
                if parts > 1:  # each part ran backward by itself, as on its rank
                    for parameter in net.parameters():
                        if parameter.grad is not None:
                            parameter.grad /= parts
                into.append(total)
                return total

            if kind.manual:
                kind.before_batch(net, index)
                _losses(kind, net, window[0], index, parts, optimizers)
            elif isinstance(optimizers[0], torch.optim.LBFGS):
                optimizers[0].step(closure)
            else:
                closure()
                for optimizer in optimizers:
                    _clip(kind, optimizer)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            if not kind.manual:
                losses.append(float(evaluated[0]))
            steps += 1
            for scheduler, interval in schedulers:
                if interval == "step":
                    scheduler.step()
            index += len(window)
            kind.after_batch(net, index - 1)
        for scheduler, interval in schedulers:
            if interval == "epoch":
                mean = sum(losses[-kind.count :]) / kind.count
                scheduler.step(*([mean] if isinstance(scheduler, ReduceLROnPlateau) else []))
    return Trained(_state(net), start, steps)


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


def _clip(kind: Kind, optimizer: Any) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if kind.max_norm is not None:
        nn.utils.clip_grad_norm_(parameters, kind.max_norm)
    if kind.max_value is not None:
        nn.utils.clip_grad_value_(parameters, kind.max_value)


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
