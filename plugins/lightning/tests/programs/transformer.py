"""A small language model: warm-up written in optimizer_step, parameter groups, perplexity, lambda scheduler."""

import math

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, mask):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class LanguageModel(L.LightningModule):
    def __init__(self, vocabulary=32, width=16, heads=2, layers=2, warmup=6, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        size = tokens.size(1)
        mask = torch.triu(torch.full((size, size), float("-inf"), device=self.device), diagonal=1)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)

    def step(self, batch):
        (tokens,) = batch
        logits = self(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("train_loss", loss, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("val_loss", loss, sync_dist=True)
        self.log("perplexity", math.exp(loss.item()), sync_dist=True)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < self.hparams.warmup:
            scale = min(1.0, float(self.trainer.global_step + 1) / self.hparams.warmup)
            for group in optimizer.param_groups:
                group["lr"] = scale * self.hparams.lr

    def configure_optimizers(self):
        decayed = [p for n, p in self.named_parameters() if p.ndim > 1]
        others = [p for n, p in self.named_parameters() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(2)
    generator = torch.Generator().manual_seed(6)
    start = torch.randint(32, (64, 1), generator=generator)
    tokens = (start + torch.arange(12) * 3) % 32
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        log_every_n_steps=1,
        val_check_interval=0.5,
        gradient_clip_val=1.0,
        logger=CSVLogger("logs", name="transformer"),
        enable_checkpointing=False,
    )
    loader = DataLoader(TensorDataset(tokens), batch_size=4)
    trainer.fit(LanguageModel(), loader, DataLoader(TensorDataset(tokens[:16]), batch_size=4))
    assert trainer.callback_metrics["val_loss"] < 10
