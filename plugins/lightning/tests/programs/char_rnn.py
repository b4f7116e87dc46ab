"""A recurrent network: one-cycle schedule per step, clipped and accumulated gradients, hooks of an epoch."""

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

TEXT = (torch.__doc__ or "a text to learn") * 20


class Characters(Dataset):
    def __init__(self, length, size):
        self.data = torch.tensor([ord(c) % 64 for c in TEXT[: length * size + 1]])
        self.length, self.size = length, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        begin = index * self.length
        return self.data[begin : begin + self.length], self.data[begin + 1 : begin + self.length + 1]


class CharRNN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 8)
        self.rnn = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 64)
        self.outputs = []

    def forward(self, x):
        out, _ = self.rnn(self.embedding(x))
        return self.head(out)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x).transpose(1, 2), y)
        self.outputs.append(loss.detach())
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self):
        self.log("mean_of_losses", torch.stack(self.outputs).mean(), sync_dist=True)
        self.outputs.clear()

    def on_before_optimizer_step(self, optimizer):
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.log("gradient_norm", torch.stack(norms).norm())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-2, total_steps=steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step", "name": "lr"},
        }


if __name__ == "__main__":
    L.seed_everything(5)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="char_rnn"),
        callbacks=[LearningRateMonitor("step")],
        enable_checkpointing=False,
    )
    trainer.fit(CharRNN(), DataLoader(Characters(12, 64), batch_size=4))
    assert trainer.num_training_batches == 16 // trainer.world_size
