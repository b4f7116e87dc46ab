"""What one rank sends, and which of its parameters are gathered, between two calls of a strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from stratagem_sharding.traffic import watch_traffic
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import stratagem

WIDTH = 8
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
NORM_BYTES = 4 * 2 * WIDTH
STATISTICS_BYTES = 4 * 2 * WIDTH + 8
"""Bytes of the norm's buffers: mean, variance and a count of 64 bits."""


class Layers(nn.Module):
    """Two layers and a norm.

    Args:
        scalars: whether there are a trained and a frozen parameter without a dimension, too.
    """

    def __init__(self, scalars: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        if scalars:
            self.gain = nn.Parameter(torch.tensor(1.5))
            self.frozen = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.second(self.first(x)))
        return out * self.gain * self.frozen if hasattr(self, "gain") else out


class DriftsAt(nn.Module):
    """A layer with a buffer that one forward changes by the rank."""

    def __init__(self, forward: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.left = nn.Linear(WIDTH, WIDTH), forward
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        self.seen += torch.distributed.get_rank() if self.left == 0 else 1
        out: Tensor = self.layer(x)
        return out


def inputs(rank: int) -> Tensor:
    """Return a batch of the rank's own."""
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(rank))


def sent(call: Callable[[], Any]) -> dict[str, int]:
    """Call it, and return the bytes of its messages by the name of the collective."""
    bytes_of: Counter[str] = Counter()
    stop = watch_traffic(lambda name, size_bytes: bytes_of.update({name: size_bytes}))
    try:
        call()
    finally:
        stop()
    return dict(bytes_of)


def gathered(module: nn.Module) -> list[str]:
    """Return the names of the parameters that this rank has all of, though they are sharded."""
    return [
        f"{owner}.{name}"
        for owner, each in module.named_modules()
        for name, parameter in each._parameters.items()
        if parameter is not None and parameter.dim() and not isinstance(parameter, DTensor)
    ]


class Traffic(stratagem.Callback):
    """Keeps what each optimizer step of rank 0 sends."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._now: Counter[str] = Counter()
        self._stop = watch_traffic(lambda name, size_bytes: self._now.update({name: size_bytes}))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > len(self.steps):
            self.steps.append(dict(self._now))
            self._now.clear()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._stop()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def traffic_of_fit(
    module: stratagem.Module, strategy: Any, run_dir: Any, **settings: Any
) -> list[dict[str, int]]:
    """Train on two ranks, and return what each optimizer step of rank 0 sends."""
    traffic = Traffic()
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        callbacks=traffic,
        seed=7,
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        run_dir=run_dir,
        check_replicas_every=0,
        **settings,
    )
    trainer.fit(module)
    return traffic.steps
