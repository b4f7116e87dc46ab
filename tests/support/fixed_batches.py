"""Modules whose batches are known beforehand, so that a plain loop over whole batches says what is right."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem

BATCHES, SAMPLES, WIDTH = 8, 8, 6


def data(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of an index: what all ranks read together."""
    generator = torch.Generator().manual_seed(100 + index)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return x, torch.randint(WIDTH, (SAMPLES,), generator=generator)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.tanh(self.layer(x))
        return out


class Fixed(stratagem.Module):
    """Blocks, and a head beside them. Derive from it and override `loss`.

    Args:
        window: micro-batches per optimizer step, for `by_hand`.
    """

    def __init__(self, window: int = 1) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.window = window
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(x)
        return scores

    def before(self, index: int) -> None:
        """Called between two steps."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: int) -> torch.Tensor | None:
        return F.cross_entropy(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
        ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        x, y = (each.chunk(ranks)[rank] for each in data(batch_idx))
        return self.loss(x, y, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Any]:
        # What is in it is left alone: enough for any number of ranks.
        return DataLoader(torch.zeros(BATCHES * 4, 1), batch_size=1)


class Between(stratagem.Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        module.before(batch_idx)


def by_hand(module: Fixed) -> dict[str, torch.Tensor]:
    """Train in this process with nothing but torch."""
    optimizer = module.configure_optimizers()
    for index in range(BATCHES):
        module.before(index)
        loss = module.loss(*data(index), index)
        if loss is not None:
            (loss / module.window).backward()
        if (index + 1) % module.window == 0:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def fit(
    module: Fixed, strategy: Any, run_dir: Any, devices: int = 2, **settings: Any
) -> dict[str, torch.Tensor]:
    """Train under a strategy."""
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=devices,
        max_epochs=1,
        limit_train_batches=BATCHES,
        accumulate_grad_batches=module.window,
        callbacks=[Between()],
        seed=7,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        run_dir=run_dir,
        **settings,
    )
    trainer.fit(module)
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_equals_plain_torch(
    module: Fixed, twin: Fixed, strategy: Any, run_dir: Any, devices: int = 2, **settings: Any
) -> None:
    """Train `module` under a strategy and its `twin` by hand, and compare."""
    ours, theirs = fit(module, strategy, run_dir, devices, **settings), by_hand(twin)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-6, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


# None from training_step ----------------------------------------------------------------------------------


class NoLosses(Fixed):
    """None last in a window, first in one, and throughout one."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: int) -> torch.Tensor | None:
        return None if index in (1, 2, 6, 7) else super().loss(x, y, index)


class NoLossOnOneRank(Fixed):
    def loss(self, x: torch.Tensor, y: torch.Tensor, index: int) -> torch.Tensor | None:
        return None if index == 1 and dist.get_rank() == 1 else super().loss(x, y, index)


# Blocks that ranks call as they like -----------------------------------------------------------------------


class Experts(Fixed):
    """Each rank's batch goes through one expert, which depends on the rank or not."""

    def __init__(self, by_rank: bool) -> None:
        super().__init__()
        self.by_rank = by_rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        # The same in the first step, so that a rank has to notice that it goes another way than before.
        expert = self.calls % 2 if not self.by_rank or self.calls < 3 else dist.get_rank()
        scores: torch.Tensor = self.head(self.blocks[expert](x))
        return scores


class TwoHeads(Fixed):
    """Each rank uses a layer of its own beside the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: int) -> torch.Tensor | None:
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy((self.other if dist.get_rank() else self.head)(x), y)


# What a step does to parameters in blocks ----------------------------------------------------------------


class ClampedBlock(Block):
    """Limits its own weight, as layers with a maximal norm do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.layer.weight.clamp_(-0.2, 0.2)
        self.layer.bias.data.clamp_(-0.05, 0.05)
        scaled: torch.Tensor = getattr(self.layer.weight, "scale", 1.0) * super().forward(x)
        return scaled


class InBlocks(Fixed):
    """Everything at once, on blocks that are gathered and freed by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([ClampedBlock(), Block(), Block().requires_grad_(False), Block()])
        self.target = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.blocks[0].layer.weight.scale = 0.5
        self.mask = torch.arange(WIDTH * WIDTH).reshape(WIDTH, WIDTH) % 3 > 0
        self.blocks[1].layer.weight.register_hook(self.masked)
        self.blocks[1].layer.bias.register_post_accumulate_grad_hook(halve)

    def masked(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.mask

    def shift(self, parameter: Any) -> None:
        parameter.data = parameter.data + 0.1

    def before(self, index: int) -> None:
        if index == 3:
            self.blocks[2].requires_grad_(True)  # all of it was frozen when it was first gathered
        if index == 4:
            with torch.no_grad():
                self.head.weight.mul_(0.9)

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: int) -> torch.Tensor | None:
        if index == 5:
            self.blocks[3].requires_grad_(False)
            self.head.bias.requires_grad_(False)
        if index == 2:
            self.shift(self.target.bias)
            self.head.weight.late = True
        if index == 6:
            assert self.head.weight.late
            self.head.weight.register_hook(double)
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.head.parameters()):
                target.lerp_(online, 0.3)
        scores = self(x)
        return F.cross_entropy(scores, y) + F.mse_loss(scores, self.target(x))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


def halve(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(0.5)


def double(gradient: torch.Tensor) -> torch.Tensor:
    return 2 * gradient


class ByRank(Fixed):
    """Changes a parameter in place, on each rank in another way."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: int) -> torch.Tensor | None:
        with torch.no_grad():
            self.head.bias.add_(0.1 * dist.get_rank())
        return super().loss(x, y, index)


class BehindItsModule(Fixed):
    """Changes a parameter by way of a list, which has the shards."""

    def __init__(self) -> None:
        super().__init__()
        self.limited = [self.head.weight]

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: int) -> torch.Tensor | None:
        with torch.no_grad():
            for parameter in self.limited:
                parameter.clamp_(-0.1, 0.1)
        return super().loss(x, y, index)
