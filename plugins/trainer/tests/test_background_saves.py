"""Fits whose checkpoints are written while they go on."""

import os

import pytest
import torch
from background_saves import Full
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_checkpoint.publication import MANIFEST
from stratagem_single import SingleDeviceStrategy
from stratagem_trainer.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem.errors import CheckpointError


class Net(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self):
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x), batch_size=4, shuffle=True)


def fit(tmp_path, name, ckpt_path=None, strategy="single", max_epochs=2, callbacks=None, background=True):
    torch.manual_seed(0)
    module = Net()
    trainer = stratagem.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_epochs=max_epochs,
        seed=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        run_dir=tmp_path / name,
        callbacks=callbacks or ModelCheckpoint(every_n_train_steps=3),
        **({"checkpoint_options": {"async": True}} if background else {}),
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_a_run_that_resumes_from_one_ends_bitwise_as_one_that_never_stopped(tmp_path):
    whole = fit(tmp_path, "whole", background=False)
    fit(tmp_path, "first", callbacks=ModelCheckpoint(every_n_train_steps=3, save_top_k=2))
    folder = tmp_path / "first/checkpoints"
    # The newest two, and the last state.
    assert sorted(entry.name for entry in folder.iterdir()) == ["epoch=1-step=18", "epoch=2-step=20", "last"]
    assert os.readlink(folder / "last") == "epoch=2-step=20"
    resumed = fit(tmp_path, "second", ckpt_path=str(folder / "epoch=1-step=18"))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


class OnFullDisk(DirectoryCheckpointer):
    def __init__(self, collectives):
        super().__init__(collectives, async_=True)

    def filesystem(self, path):
        return Full(MANIFEST), path


class SaveOnce(Callback):
    """Saves at the first step, and waits there until that has failed, as a slow step does."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == 1:
            trainer.save_checkpoint(f"{trainer.run_dir}/one")
            writer = trainer.runtime.session.checkpointer._background.writer
            assert writer._connection.poll(60)


def test_a_save_that_fails_ends_the_fit_at_the_next_step(tmp_path):
    seen = []

    class Steps(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            seen.append(trainer.global_step)

    with pytest.raises(CheckpointError, match=r"one can't be written: OSError: .* No space left") as reported:
        fit(
            tmp_path,
            "full",
            strategy=SingleDeviceStrategy(checkpoint_io=OnFullDisk),
            callbacks=[SaveOnce(), Steps(), ModelCheckpoint(every_n_epochs=0, save_last=False)],
            background=False,
        )
    assert reported.value.exit_code == 1
    assert seen == [1]


class SaveAtTheEnd(Callback):
    def on_train_end(self, trainer, module):
        trainer.save_checkpoint(f"{trainer.run_dir}/one")


def test_a_save_that_fails_at_the_end_fails_the_fit(tmp_path):
    with pytest.raises(CheckpointError, match="No space left"):
        fit(
            tmp_path,
            "full",
            strategy=SingleDeviceStrategy(checkpoint_io=OnFullDisk),
            callbacks=[SaveAtTheEnd(), ModelCheckpoint(every_n_epochs=0, save_last=False)],
            background=False,
        )


def save_at_a_step(runtime, path):
    net = nn.Linear(2, 1)
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runtime.session.checkpointer.filesystem = lambda path: (Full(MANIFEST), path)
    runtime.backward(module(torch.ones(1, 2)).sum())
    optimizer.step()
    runtime.save(path)
    assert runtime.session.checkpointer._background.writer._connection.poll(60)
    with pytest.raises(CheckpointError, match="No space left"):
        optimizer.step()
    with pytest.raises(CheckpointError, match="No space left"):
        runtime.save(path)
    return "both"


def test_in_a_own_loop_the_next_step_and_the_next_save_tell(tmp_path):
    runtime = stratagem.Runtime("single", accelerator="cpu", devices=1, checkpoint_options={"async": True})
    assert runtime.launch(save_at_a_step, str(tmp_path / "one"), quiet=True) == "both"
