"""A frozen backbone that thaws after an epoch."""

import lightning as L
import torch
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Thaw(BaseFinetuning):
    def __init__(self, at_epoch=1):
        super().__init__()
        self.at_epoch = at_epoch

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == self.at_epoch:
            self.unfreeze_and_add_param_group(modules=pl_module.backbone, optimizer=optimizer, lr=0.01)


class Transfer(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.backbone(x)), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD((p for p in self.parameters() if p.requires_grad), lr=0.1)


if __name__ == "__main__":
    L.seed_everything(9)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(48, 8, generator=generator)
    dataset = TensorDataset(x, x.argmax(1) % 3)
    model = Transfer()
    before = model.backbone[0].weight.detach().clone()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="finetuning"),
        callbacks=[Thaw()],
        enable_checkpointing=False,
    )
    trainer.fit(model, DataLoader(dataset, batch_size=8))
    assert not torch.equal(before, model.backbone[0].weight)
