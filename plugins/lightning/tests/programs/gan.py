"""Manual optimization of two networks in turn."""

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(noise, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


class GAN(L.LightningModule):
    def __init__(self, noise=4, lr=1e-2, b1=0.5, b2=0.999):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = Generator(self.hparams.noise)
        self.discriminator = Discriminator()
        self.register_buffer("fixed_noise", torch.linspace(-1, 1, 4 * noise).view(4, noise))

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, y_hat, y):
        return nn.functional.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, batch):
        real, z = batch
        optimizer_g, optimizer_d = self.optimizers()

        self.toggle_optimizer(optimizer_g)
        generated = self(z)
        valid = torch.ones(real.size(0), 1).type_as(real)
        g_loss = self.adversarial_loss(self.discriminator(generated), valid)
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.discriminator(real), valid)
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), torch.zeros_like(valid))
        d_loss = (real_loss + fake_loss) / 2
        self.log("train_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        self.clip_gradients(optimizer_d, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self):
        betas = (self.hparams.b1, self.hparams.b2)
        return [
            torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr, betas=betas),
            torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams.lr, betas=betas),
        ], []

    def on_train_epoch_end(self):
        with torch.no_grad():
            self.log(
                "spread", self(self.fixed_noise.type_as(self.generator.net[0].weight)).std(), sync_dist=True
            )


if __name__ == "__main__":
    L.seed_everything(3)
    source = torch.Generator().manual_seed(5)
    dataset = TensorDataset(torch.randn(64, 2, generator=source) + 2, torch.randn(64, 4, generator=source))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="gan"),
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(GAN(), DataLoader(dataset, batch_size=8))
    assert trainer.logged_metrics["spread"] > 0
