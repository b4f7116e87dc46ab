"""A run by the trainer, stopped and continued, beside the same loop in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

Setup = Callable[[nn.Module], tuple[torch.optim.Optimizer, Any]]
"""Makes an optimizer and a scheduler, or None, of a module."""


class Regression(stratagem.Module):
    """A matrix, a bias and a convolution's kernel, with an optimizer and a scheduler from outside."""

    def __init__(self, setup: Setup | None = None, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.setup_optimizer, self.how = setup, how
        self.rates: list[Any] = []

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(self.second(torch.tanh(self.first(x))), y)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = self.setup_optimizer(self)
        if scheduler is None:
            return optimizer
        return [optimizer], [{"scheduler": scheduler, "interval": "step", **self.how}]


class Words(Regression):
    """Gradients are sparse."""

    def __init__(self, setup: Setup | None = None, **how: Any) -> None:
        super().__init__(setup, **how)
        del self.first, self.second
        self.table = nn.Embedding(16, 2, sparse=True)

    def loss(self, batch: Any) -> Tensor:
        return F.mse_loss(self.table((batch[0][:, 0] * 4).long() % 16).sum(1, keepdim=True), batch[1])


class Matrix(Regression):
    """Has parameters with two dims alone."""

    def __init__(self, setup: Setup | None = None, **how: Any) -> None:
        super().__init__(setup, **how)
        self.first, self.second = nn.Linear(4, 8, bias=False), nn.Linear(8, 1, bias=False)


def settings_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What schedulers change of each group."""
    return [
        [float(group["lr"]), group.get("momentum"), tuple(map(float, group.get("betas", ())))]
        for group in optimizer.param_groups
    ]


def batches(count: int = 8) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count * 4, 4, generator=generator)
    dataset = TensorDataset(x, (x * x).sum(1, keepdim=True))
    # A sampler of its own keeps the order, so that a plain loop sees the same batches.
    return DataLoader(dataset, 4, sampler=range(len(dataset)))


def train_by_hand(module: Regression, epochs: int) -> None:
    """The plain loop."""
    optimizer, scheduler = module.setup_optimizer(module)
    for _ in range(epochs):
        for batch in batches():
            module.rates.append(settings_of(optimizer))

            def closure(batch: Any = batch) -> Tensor:
                optimizer.zero_grad()
                loss = module.loss(batch)
                loss.backward()
                return loss

            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            if scheduler is not None:
                scheduler.step(*([1.0] if "monitor" in module.how else []))


class SaveAt(stratagem.Callback):
    """Writes a checkpoint at an optimizer step."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


class Rates(stratagem.Callback):
    """Notes what the optimizer is about to use."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        module.rates.append(settings_of(trainer.prepared.optimizers[0]))


def train(module: stratagem.Module, tmp_path: Path, ckpt_path: Path | None = None, **how: Any) -> Any:
    """Fit in this process."""
    settings = {
        "strategy": "single",
        "accelerator": "cpu",
        "max_epochs": 2,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "logger": False,
        "run_dir": tmp_path / "run",
        "seed": 1,
        **how,
    }
    trainer = stratagem.Trainer(**settings)
    trainer.fit(module, batches(), ckpt_path=ckpt_path)
    return trainer


def hold_against_plain_torch(make: Callable[[], Regression], tmp_path: Path, save_at: int = 11) -> None:
    """Train two epochs of 8 steps by the trainer, by hand, and by the trainer from a checkpoint; all are equal."""
    whole, rest, plain = make(), make(), make()
    train(whole, tmp_path, callbacks=[Rates(), SaveAt(save_at, tmp_path / "ckpt")])
    train(rest, tmp_path, tmp_path / "ckpt", callbacks=Rates())
    train_by_hand(plain, 2)
    assert whole.rates == plain.rates
    assert rest.rates == whole.rates[save_at:]
    for name, expected in plain.state_dict().items():
        assert torch.equal(whole.state_dict()[name], expected), name
        assert torch.equal(rest.state_dict()[name], expected), name
