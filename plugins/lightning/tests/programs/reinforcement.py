"""DQN on a small chain: an iterable data set that plays, a target network, steps counted by hand."""

from collections import deque, namedtuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

Experience = namedtuple("Experience", "state action reward done new_state")


class Chain:
    """Five places; to the right end for a reward."""

    def reset(self):
        self.place = 0
        return self.seen()

    def seen(self):
        return np.eye(5, dtype=np.float32)[self.place]

    def step(self, action):
        self.place = min(4, self.place + 1) if action else max(0, self.place - 1)
        done = self.place == 4
        return self.seen(), np.float32(done), done


class Replay(IterableDataset):
    def __init__(self, buffer, size, seed):
        self.buffer, self.size, self.random = buffer, size, np.random.default_rng(seed)

    def __iter__(self):
        for index in self.random.integers(len(self.buffer), size=self.size):
            yield tuple(self.buffer[int(index)])


class DQN(L.LightningModule):
    def __init__(self, gamma=0.9, sync_rate=4, batch_size=8):
        super().__init__()
        self.save_hyperparameters()
        self.net, self.target = nn.Linear(5, 2), nn.Linear(5, 2)
        self.target.load_state_dict(self.net.state_dict())
        self.target.requires_grad_(False)
        self.environment, self.random = Chain(), np.random.default_rng(0)
        self.state = self.environment.reset()
        self.buffer = deque(maxlen=200)
        for _ in range(64):
            self.play(1.0)

    def play(self, epsilon):
        if self.random.random() < epsilon:
            action = int(self.random.integers(2))
        else:
            with torch.no_grad():
                action = int(self.net(torch.as_tensor(self.state)).argmax())
        new_state, reward, done = self.environment.step(action)
        self.buffer.append(Experience(self.state, action, reward, done, new_state))
        self.state = self.environment.reset() if done else new_state
        return float(reward)

    def training_step(self, batch, batch_idx):
        reward = self.play(max(0.1, 1 - self.global_step / 20))
        states, actions, rewards, dones, new_states = batch
        q = self.net(states).gather(1, actions.long().unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            best = self.target(new_states).max(1)[0]
            best[dones] = 0.0
        loss = nn.functional.mse_loss(q, rewards + self.hparams.gamma * best)
        if self.global_step % self.hparams.sync_rate == 0:
            self.target.load_state_dict(self.net.state_dict())
        self.log_dict({"train_loss": loss, "reward": reward, "steps": float(self.global_step)})
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=0.05)

    def train_dataloader(self):
        return DataLoader(Replay(self.buffer, 64, 1), batch_size=self.hparams.batch_size)


if __name__ == "__main__":
    L.seed_everything(4)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="reinforcement"),
        enable_checkpointing=False,
    )
    trainer.fit(DQN())
