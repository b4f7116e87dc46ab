"""Small modules on a small regression, for tests of the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem


def samples(count: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=generator))


class Line(stratagem.Module):
    """Linear regression with dropout, so that random numbers matter."""

    def __init__(self, dropout: float = 0.0, count: int = 48, batch_size: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout)
        self.count, self.batch_size = count, batch_size
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.dropout(x))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.seen += x[:, 0].tolist()
        loss = F.mse_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.mse_loss(self(x), y))
        self.log("count", float(len(x)), reduce_fx="sum")

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(self.count), self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(self.count), self.batch_size)

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])


class Descent(Line):
    """Steps along the gradient itself, so that its size shows."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class TwoPlayers(Line):
    """Two parts with an optimizer each, trained in turn by hand, as a GAN is."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        first, second = self.optimizers()
        loss = F.mse_loss(self(x), y)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        with self.toggle_grad(second):
            second.zero_grad()
            self.manual_backward(F.mse_loss(self.other(self(x)), y))
            second.step()
        self.log("loss", loss)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.layer.parameters(), lr=0.05),
            torch.optim.SGD(self.other.parameters(), lr=0.05),
        ]


class Unequal(Line):
    """Logs another name on rank 1."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self(batch[0]), batch[1])
        self.log(f"loss_{self.global_rank}", loss, sync_dist=True)
        return loss


class Fails(Line):
    """Raises on rank 1 in its third batch; the others go on to a collective."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_rank == 1 and batch_idx == 2:
            raise ArithmeticError("the third batch is cursed")
        return super().training_step(batch, batch_idx)


class Closure(Line):
    """Needs an optimizer that evaluates several times per step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class Normed(Line):
    """Has buffers, a frozen part, and parameters that aren't used."""

    def __init__(self) -> None:
        super().__init__(count=50)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(self.frozen(x)))
