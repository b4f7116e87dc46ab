"""A generative adversarial network that draws digits: two optimizers, and a training step that does it all itself.

stratagem fit examples/gan.py:GAN --max-epochs 40 --run-dir runs/gan
stratagem fit examples/gan.py:GAN --max-epochs 40 --strategy ddp --accelerator cpu --devices 2
stratagem predict examples/gan.py:GAN --ckpt-path runs/gan/checkpoints/last --output drawn.npz
"""

from __future__ import annotations

import torch
from digits import digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem


class GAN(stratagem.Module):
    """A generator of 8 × 8 images, and a discriminator that is to tell them from scans.

    Args:
        latent: numbers that an image is made from.
        hidden: width of both nets.
        lr: learning rate of both.
        batch_size: scans per step and process.
    """

    automatic_optimization = False

    def __init__(self, latent: int = 16, hidden: int = 128, lr: float = 1e-3, batch_size: int = 60) -> None:
        super().__init__()
        self.latent, self.lr, self.batch_size = latent, lr, batch_size
        self.generator = nn.Sequential(
            *(nn.Linear(latent, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, 64), nn.Sigmoid()),
        )
        self.discriminator = nn.Sequential(
            *(nn.Linear(64, hidden), nn.LeakyReLU(0.2), nn.Dropout(0.3)),
            *(nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), nn.Dropout(0.3)),
            nn.Linear(hidden, 1),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Return images of (batch, 64), from 0 to 1."""
        return self.generator(noise)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        scans = batch[0].flatten(1)
        drawn = self(torch.randn(len(scans), self.latent, device=self.device))

        with self.toggle_grad(discriminator):
            loss = self.judged(scans, True) + self.judged(drawn.detach(), False)
            discriminator.zero_grad()
            self.manual_backward(loss)
            discriminator.step()
            self.log("discriminator_loss", loss)

        with self.toggle_grad(generator):
            loss = self.judged(drawn, True)
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.log("generator_loss", loss)

    def judged(self, images: Tensor, as_scans: bool) -> Tensor:
        """How far the discriminator is from calling the images scans, or drawn."""
        scores = self.discriminator(images)
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(as_scans)))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        scans = batch[0].flatten(1)
        drawn = self(torch.randn(len(scans), self.latent, device=self.device))
        # From each drawn image to the nearest scan: 3.7 for noise, 1.6 for scans of another set.
        self.log(
            "val_distance", torch.cdist(drawn, scans).min(dim=1).values.mean(), prog_bar=True, sync_dist=True
        )

    def predict_step(self, batch: tuple[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).unflatten(1, (8, 8))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        nets = (self.generator, self.discriminator)
        return [torch.optim.Adam(net.parameters(), lr=self.lr, betas=(0.5, 0.999)) for net in nets]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(digits()[0], self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(digits()[1], self.batch_size)

    def predict_dataloader(self) -> DataLoader:
        noise = torch.randn(64, self.latent, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(noise), 16)
