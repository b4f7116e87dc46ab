"""Layers, one or two of a kind in a small net."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, rnn

from tests.parity.kind import SAMPLES, Kind, mlp
from tests.parity.kinds.models import VOCABULARY


class Layer(Kind, abstract=True):
    theme = "layers"


class Signals(Layer, abstract=True):
    """Batches of (samples, channels, length)."""

    def sample(self, generator: torch.Generator) -> Any:
        x = torch.randn(SAMPLES, 4, 12, generator=generator)
        return x, torch.randn(SAMPLES, 3, generator=generator)


class Conv1d(Signals):
    """Conv1d."""

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(60, 3))


class ConvTransposed(Signals):
    """ConvTranspose1d and grouped convolution."""

    def net(self) -> nn.Module:
        return nn.Sequential(
            nn.ConvTranspose1d(4, 6, 3),
            nn.ReLU(),
            nn.Conv1d(6, 6, 3, groups=3),
            nn.Flatten(),
            nn.Linear(72, 3),
        )


class BatchNormTraining(Signals):
    """BatchNorm in training mode."""

    per_share = True
    per_share_reason = (
        "each rank normalizes by its own batch, as under torch's DDP: SyncBatchNorm needs a GPU"
    )

    options = {"pipeline": {"batch_statistics_per_part": True}}

    def net(self) -> nn.Module:
        # Without running statistics: those are each rank's own.
        norm = nn.BatchNorm1d(6, track_running_stats=False)
        return nn.Sequential(nn.Conv1d(4, 6, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(60, 3))


class Frozen(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


class BatchNormFrozen(Signals):
    """BatchNorm that stays in evaluation mode."""

    def net(self) -> nn.Module:
        norm = Frozen(6)
        norm.running_mean.fill_(0.1)
        norm.running_var.fill_(2.0)
        norm.eval()
        return nn.Sequential(nn.Conv1d(4, 6, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(60, 3))


class SyncBatchNorm(Signals):
    """SyncBatchNorm."""

    def net(self) -> nn.Module:
        norm = nn.SyncBatchNorm(6)
        return nn.Sequential(nn.Conv1d(4, 6, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(60, 3))


class GroupNorm(Signals):
    """GroupNorm and InstanceNorm."""

    def net(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv1d(4, 6, 3),
            nn.GroupNorm(2, 6),
            nn.InstanceNorm1d(6, affine=True),
            nn.Flatten(),
            nn.Linear(60, 3),
        )


class LayerNorm(Layer):
    """LayerNorm and RMSNorm."""

    def net(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.RMSNorm(16), nn.Linear(16, 3)
        )


class PRelu(Layer):
    """Dropout with p=0 and PReLU."""

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.PReLU(), nn.Dropout(0.0), nn.Linear(16, 3))


class Recurrent(nn.Module):
    def __init__(self, cells: nn.Module) -> None:
        super().__init__()
        self.cells, self.head = cells, nn.Linear(8, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return self.head(padded[torch.arange(len(x)), lengths - 1])


class LstmPacked(Layer):
    """LSTM over packed sequences."""

    def sample(self, generator: torch.Generator) -> Any:
        x = torch.randn(SAMPLES, 7, 5, generator=generator)
        lengths = torch.randint(2, 8, (SAMPLES,), generator=generator)
        return x, lengths, torch.randn(SAMPLES, 3, generator=generator)

    def net(self) -> nn.Module:
        return Recurrent(nn.LSTM(5, 8, num_layers=2, batch_first=True))

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        x, lengths, y = batch
        return F.mse_loss(net(x, lengths), y)


class GruPacked(LstmPacked):
    """Bidirectional GRU, over packed sequences."""

    def net(self) -> nn.Module:
        return Recurrent(nn.GRU(5, 4, bidirectional=True, batch_first=True))


class Words(Layer, abstract=True):
    def sample(self, generator: torch.Generator) -> Any:
        words = torch.randint(0, VOCABULARY, (SAMPLES, 5), generator=generator)
        return words, torch.randn(SAMPLES, 3, generator=generator)


class EmbeddingPadding(Words):
    """Embedding with padding_idx."""

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(VOCABULARY, 6, padding_idx=0), nn.Flatten(), nn.Linear(30, 3))


class EmbeddingSparse(Words):
    """Embedding with sparse gradients, SGD."""

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(VOCABULARY, 6, sparse=True), nn.Flatten(), nn.Linear(30, 3))


class EmbeddingBag(Words):
    """EmbeddingBag."""

    def net(self) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(VOCABULARY, 6, mode="mean"), nn.Linear(6, 3))


class WeightNorm(Layer):
    """Parametrization weight_norm."""

    def net(self) -> nn.Module:
        net = mlp()
        parametrizations.weight_norm(net[0])
        return net


class Orthogonal(Layer):
    """Parametrization orthogonal."""

    def net(self) -> nn.Module:
        net = mlp()
        parametrizations.orthogonal(net[2])
        return net


class SpectralNorm(Layer):
    """Parametrization spectral_norm."""

    # Each forward iterates once more, and a pipeline refuses to have one per part of a batch.
    options = {"pipeline": {"micro_batches": 1, "schedule": "gpipe"}}

    def net(self) -> nn.Module:
        net = mlp()
        parametrizations.spectral_norm(net[2])
        return net


class Double(torch.autograd.Function):
    """Passes the cube on, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.clamp(-0.5, 0.5)


class Applied(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Double.apply(x)


class CustomFunction(Layer):
    """Custom autograd function."""

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), Applied(), nn.Linear(16, 3))
