"""A GAN on Fabric: methods of a module, a LightningModule's step, settings that change, one checkpoint of both."""

import lightning as L
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
        self.temperature = 1.0

    def forward(self, noise):
        return self.net(noise) * self.temperature

    def sample(self, count, generator):
        return self(torch.randn(count, 3, generator=generator))

    def num_weights(self):
        return sum(each.numel() for each in self.parameters())


class Critic(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        real, fake = batch
        loss = (self(real) - 1).square().mean() + self(fake).square().mean()
        self.log("critic_loss", loss, prog_bar=True)
        self.log("unseen", loss, logger=False)
        assert self.trainer.world_size == self.fabric.world_size
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def train(fabric, generator, critic, of_generator, of_critic, state, steps):
    random = torch.Generator().manual_seed(5)
    while state["step"] < steps:
        real = torch.randn(8, 4, generator=random) + 2
        fake = generator.sample(8, random)
        loss = critic.training_step((real, fake.detach()), state["step"])
        fabric.backward(loss)
        critic.clip_gradients(of_critic, 0.5, "norm")
        critic.optimizers().step()
        of_critic.zero_grad()
        fooled = (critic(generator.sample(8, random)) - 1).square().mean()
        fabric.backward(fooled)
        of_generator.step()
        of_generator.zero_grad()
        state["step"] += 1
        generator.temperature = 1 + 0.1 * state["step"]
        print("RESULT", float(loss.detach()), float(fooled.detach()))


def main():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(21)
    generator, critic = Generator(), Critic()
    optimizers = torch.optim.Adam(generator.parameters(), lr=0.05), critic.configure_optimizers()
    generator, of_generator = fabric.setup(generator, optimizers[0])
    critic, of_critic = fabric.setup(critic, optimizers[1])
    generator.mark_forward_method("sample")
    print("RESULT", generator.num_weights())
    state = {
        "generator": generator,
        "critic": critic,
        "of_generator": of_generator,
        "of_critic": of_critic,
        "step": 0,
    }
    train(fabric, generator, critic, of_generator, of_critic, state, 3)
    print("RESULT", float(generator.module.temperature))
    fabric.save("gan.ckpt", state)
    train(fabric, generator, critic, of_generator, of_critic, state, 6)
    fabric.load("gan.ckpt", state)
    generator.temperature = 1.3
    print("RESULT", state["step"])
    train(fabric, generator, critic, of_generator, of_critic, state, 6)
    assert critic.trainer.is_global_zero == (fabric.global_rank == 0)
    assert not hasattr(critic.trainer, "max_epochs")


if __name__ == "__main__":
    main()
