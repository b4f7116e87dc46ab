"""A run saved in the middle of its training goes on elsewhere: in plain PyTorch, DCP, Lightning, and here again."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_checkpoint.formats.converting import Writing, read_weights, write_weights
from stratagem_checkpoint.formats.stored import WeightsReader
from stratagem_cli.main import main
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem.errors import CheckpointError, ConfigError

BATCH, BATCHES, EPOCHS = 4, 5, 3
OPTIMIZERS = ("adamw", "sgd", "adafactor")


def network() -> nn.Module:
    """Return one with buffers, and two weights that are tied."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)
        )
        net[3].weight = net[0].weight
        return net


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(BATCH * BATCHES, 6, generator=generator)
    return TensorDataset(x, (x @ torch.randn(6, 4, generator=generator)).argmax(1))


def configured(net: nn.Module, kind: str) -> tuple[torch.optim.Optimizer, Any, str]:
    """Return an optimizer with two groups, not in the module's order, its schedule, and when that steps."""
    matrices = [each for each in net.parameters() if each.ndim > 1]
    others = [each for each in net.parameters() if each.ndim == 1]
    groups = [{"params": others, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.1}]
    optimizer: torch.optim.Optimizer
    if kind == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=1e-2, amsgrad=True)
    elif kind == "sgd":
        optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1), "epoch"
    else:
        optimizer = torch.optim.Adafactor(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=EPOCHS * BATCHES, cycle_momentum=kind != "adafactor"
    )
    return optimizer, schedule, "step"


class Net(stratagem.Module):
    def __init__(self, kind: str = "adamw") -> None:
        super().__init__()
        self.net, self.kind = network(), kind

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return as_lightning(configured(self.net, self.kind))


def as_lightning(parts: tuple[torch.optim.Optimizer, Any, str]) -> dict[str, Any]:
    optimizer, schedule, interval = parts
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}


@dataclass
class Losses(stratagem.Callback):
    """Keeps each step's loss, and saves after some steps; where the number is below 0, at the epoch's end after it."""

    saves: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses[trainer.global_step - 1] = float(outputs["loss"])
        if trainer.global_step in self.saves:
            trainer.save_checkpoint(self.saves[trainer.global_step])

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if -trainer.global_step in self.saves:
            trainer.save_checkpoint(self.saves[-trainer.global_step])

    @property
    def state_key(self) -> str:
        return "losses"


def fit(folder: Path, kind: str, begin: str | None = None, **saves: int) -> dict[int, float]:
    """Train here; return the loss of each step."""
    kept = Losses({step: str(folder / name) for name, step in saves.items()})
    trainer = stratagem.Trainer(
        strategy="single", accelerator="cpu", max_epochs=EPOCHS, callbacks=[kept], logger=False,
        enable_progress_bar=False, enable_checkpointing=False, run_dir=folder / "logs",
    )  # fmt: skip
    trainer.fit(Net(kind), DataLoader(data(), BATCH), ckpt_path=begin)
    return kept.losses


@pytest.fixture(params=OPTIMIZERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def losses(tmp_path: Path, kind: str) -> dict[int, float]:
    """Of a run that was saved as `middle` in its second epoch, and as `last` and `boundary` at the end of the first.

    As `last` after the last batch, and as `boundary` when the epoch was over.
    """
    found = fit(tmp_path, kind, middle=BATCHES + 2, last=BATCHES, boundary=-BATCHES)
    assert sorted(found) == list(range(EPOCHS * BATCHES))
    return found


def convert(source: Path, target: Path, name: str) -> str:
    write_weights(read_weights(str(source)), str(target), name, Writing(training=True))
    return str(target)


def plain_losses(net: nn.Module, parts: tuple[Any, Any, str], first: int) -> dict[int, float]:
    """Go on by a plain loop from a step."""
    optimizer, schedule, interval = parts
    found = {}
    for step in range(first, EPOCHS * BATCHES):
        start = step % BATCHES * BATCH
        x, y = data()[start : start + BATCH]
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if interval == "step" or (step + 1) % BATCHES == 0:
            schedule.step()
        found[step] = loss.item()
    return found


def same(found: dict[int, float], expected: dict[int, float], first: int) -> None:
    assert sorted(found) == list(range(first, EPOCHS * BATCHES))
    for step, loss in found.items():
        assert loss == pytest.approx(expected[step], abs=1e-6), step


def test_plain_torch_goes_on(tmp_path: Path, losses: dict[int, float], kind: str) -> None:
    path = convert(tmp_path / "middle", tmp_path / "x.pt", "torch")
    content = torch.load(path, weights_only=True)
    step = content["global_step"]
    assert (content["epoch"], content["batch"], step) == (1, 2, BATCHES + 2)
    net = nn.ModuleDict({"net": network()})
    optimizer, schedule, interval = configured(net["net"], kind)
    net.load_state_dict(content["state_dict"])
    optimizer.load_state_dict(content["optimizer_states"][0])
    schedule.load_state_dict(content["lr_schedulers"][0])
    assert not any("param_names" in group for group in optimizer.param_groups)
    same(plain_losses(net["net"], (optimizer, schedule, interval), step), losses, step)


def test_dcp_goes_on(tmp_path: Path, losses: dict[int, float], kind: str) -> None:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    path = convert(tmp_path / "middle", tmp_path / "x", "dcp")
    net = nn.ModuleDict({"net": network()})
    optimizer, schedule, interval = configured(net["net"], kind)
    content = {
        "model": get_model_state_dict(net),
        "optim": get_optimizer_state_dict(net, optimizer),
        "lr_schedulers": [schedule.state_dict()],
        "global_step": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(content, checkpoint_id=path)
    set_model_state_dict(net, content["model"])
    set_optimizer_state_dict(net, optimizer, content["optim"])
    schedule.load_state_dict(content["lr_schedulers"][0])
    step = content["global_step"]
    assert step == BATCHES + 2
    same(plain_losses(net["net"], (optimizer, schedule, interval), step), losses, step)


def lightning_losses(path: str, kind: str, folder: Path, order: list[int]) -> tuple[dict[int, float], Any]:
    """Go on in Lightning from a file, whose epoch has the batches of `order` left at its beginning."""
    import lightning.pytorch as pl

    class Same(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            found[self.global_step] = loss.item()
            return loss

        def configure_optimizers(self) -> Any:
            return as_lightning(configured(self.net, kind))

        def train_dataloader(self) -> Any:
            # Lightning begins an epoch's data again, wherever in the epoch it goes on.
            batches = order if self.trainer.global_step == first else list(range(BATCHES))
            samples = [n for batch in batches for n in range(batch * BATCH, (batch + 1) * BATCH)]
            return DataLoader(torch.utils.data.Subset(data(), samples), BATCH)

    found: dict[int, float] = {}
    first = torch.load(path, weights_only=True)["global_step"]
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, default_root_dir=folder, reload_dataloaders_every_n_epochs=1,
    )  # fmt: skip
    net = Same()
    trainer.fit(net, ckpt_path=path)
    trainer.save_checkpoint(folder / "after.ckpt")
    return found, trainer


IGNORED = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@IGNORED
@pytest.mark.parametrize("where", ["boundary", "last", "middle"])
def test_lightning_goes_on(tmp_path: Path, losses: dict[int, float], kind: str, where: str) -> None:
    if (kind, where) == ("sgd", "last"):
        with pytest.raises(CheckpointError, match="between the last batch of epoch 0 and the epoch's end"):
            convert(tmp_path / where, tmp_path / "x.ckpt", "lightning")
        assert not (tmp_path / "x.ckpt").exists()
        return
    path = convert(tmp_path / where, tmp_path / "x.ckpt", "lightning")
    first = BATCHES + 2 if where == "middle" else BATCHES
    rest = list(range(first % BATCHES, BATCHES))
    found, trainer = lightning_losses(path, kind, tmp_path, [*rest, *range(BATCHES - len(rest))])
    same(found, losses, first)
    assert (trainer.global_step, trainer.current_epoch) == (EPOCHS * BATCHES, EPOCHS)


@pytest.mark.parametrize(("name", "file"), [("torch", "x.pt"), ("dcp", "x"), ("lightning", "x.ckpt")])
def test_there_and_back(tmp_path: Path, losses: dict[int, float], kind: str, name: str, file: str) -> None:
    """What comes back goes on where an epoch begins, and has all states bit for bit."""
    there = convert(tmp_path / "boundary", tmp_path / file, name)
    back = convert(Path(there), tmp_path / "back", "stratagem")
    ours, theirs = read_weights(str(tmp_path / "boundary")), read_weights(back)
    assert ours.training is not None and theirs.training is not None
    assert (theirs.training.epoch, theirs.training.batch, theirs.training.step) == (1, 0, BATCHES)
    with WeightsReader(ours) as of_ours, WeightsReader(theirs) as of_theirs:
        pairs = [(ours.tensors, theirs.tensors)]
        pairs += [(a.tensors(), b.tensors()) for a, b in zip(ours.training.optimizers, theirs.training.optimizers)]
        for before, after in pairs:
            assert before and set(before) <= set(after)
            for key in before:
                assert torch.equal(of_ours.read(before[key]), of_theirs.read(after[key])), key
    found = fit(tmp_path, kind, back)
    same(found, losses, BATCHES)
