"""Two training loaders at once, combined by name."""

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch["labelled"]
        loss = nn.functional.cross_entropy(self.net(x), y)
        if batch["unlabelled"] is not None:
            (more,) = batch["unlabelled"]
            loss = loss + 0.1 * torch.distributions.Categorical(logits=self.net(more)).entropy().mean()
        self.log("train_loss", loss, batch_size=len(x))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.1)


if __name__ == "__main__":
    L.seed_everything(15)
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(2))
    labelled = DataLoader(TensorDataset(x[:32], x[:32].argmax(1) % 3), batch_size=4)
    unlabelled = DataLoader(TensorDataset(x[16:]), batch_size=8)
    for mode in ("max_size_cycle", "min_size", "max_size"):
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=2,
            log_every_n_steps=1,
            logger=CSVLogger("logs", name=f"semi_{mode}"),
            enable_checkpointing=False,
        )
        trainer.fit(Net(), CombinedLoader({"labelled": labelled, "unlabelled": unlabelled}, mode=mode))
        print("RESULT", trainer.num_training_batches, float(trainer.callback_metrics["train_loss"]))
