"""Cross-validation: several fits in one program, the mean of their tests."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class Net(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.lr = lr
        self.net = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log_dict({"test_loss": loss}, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(2))
    dataset = TensorDataset(x, x.mean(1, keepdim=True))
    tested = []
    for fold in range(3):
        L.seed_everything(20 + fold)
        inside = [i for i in range(48) if i % 3 != fold]
        outside = [i for i in range(48) if i % 3 == fold]
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=2,
            log_every_n_steps=1,
            logger=CSVLogger("logs", name=f"fold_{fold}"),
            callbacks=[ModelCheckpoint(f"saved_{fold}", monitor="train_loss")],
            enable_progress_bar=False,
        )
        model = Net()
        trainer.fit(model, DataLoader(Subset(dataset, inside), batch_size=8))
        tested += trainer.test(model, DataLoader(Subset(dataset, outside), batch_size=8))
    print("RESULT", sum(each["test_loss"] for each in tested) / 3)
