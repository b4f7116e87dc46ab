"""What processes with XLA in them do for tests of stratagem-xla; each runs in a worker of the kit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.trained import RecipeModule, train
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem


@dataclass(frozen=True)
class Adam(Recipe):
    """Moments and step counts are states that must travel; 11 steps."""

    steps: int | None = 11

    def optimizers(self, net: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2)]


@dataclass
class SaveAt(stratagem.Callback):
    step: int
    path: str

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def save(subject: StrategySubject, recipe: Recipe, step: int, path: str) -> Trained:
    return train(subject, recipe, [SaveAt(step, path)])


def go_on(subject: StrategySubject, recipe: Recipe, path: str) -> Trained:
    return train(subject, recipe, ckpt_path=path)


class Masked(RecipeModule):
    """Its steps take the mask of what counts, so that the last batch may be filled up."""

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__(recipe, batch_size)
        self.rows: list[int] = []

    def _loss(self, batch: Any, mask: Tensor) -> Tensor:
        losses = F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")
        return (losses * mask).sum() / mask.sum()

    def training_step(  # type: ignore[override]  # with a mask
        self, batch: Any, batch_idx: int, sample_mask: Tensor
    ) -> Tensor:
        self.rows.append(len(batch[0]))
        loss = self._loss(batch, sample_mask)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, sample_mask: Tensor) -> None:
        self.rows.append(len(batch[0]))
        self.log("val_loss", self._loss(batch, sample_mask))

    def predict_step(  # type: ignore[override]  # with a mask
        self, batch: Any, batch_idx: int, sample_mask: Tensor
    ) -> Tensor:
        return self.net(batch[0])

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.recipe.dataset(), self.batch_size)

    predict_dataloader = val_dataloader


class Unmasked(Masked):
    """The same, as a module that knows no masks."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # type: ignore[override]  # without a mask
        return super().training_step(batch, batch_idx, torch.ones_like(batch[1]))

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]  # without a mask
        super().validation_step(batch, batch_idx, torch.ones_like(batch[1]))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:  # type: ignore[override]  # without a mask
        return self.net(batch[0])


@dataclass
class Padding:
    """What came of a module whose last batch is smaller."""

    losses: list[float]
    rows: list[int]
    """Samples in what each training step was called with."""
    compiled: list[int]
    """Programs compiled in each epoch."""
    mean: float
    """The epoch's, weighed by samples."""
    val_loss: float
    predicted: Tensor


@dataclass
class Compiled(stratagem.Callback):
    """Counts what XLA compiles in each epoch."""

    counts: list[int] = field(default_factory=list)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.counts.append(compilations())


def compilations() -> int:
    import torch_xla.debug.metrics as met

    return int(met.counter_value("UncachedCompile") or 0)


def pad(subject: StrategySubject, masked: bool, samples: int) -> Padding:
    recipe = Recipe(samples=samples, epochs=3, steps=None)
    compiled = Compiled()
    losses: list[float] = []

    class Losses(stratagem.Callback):
        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            losses.append(float(outputs["loss"].cpu()))

    module = (Masked if masked else Unmasked)(recipe, recipe.global_batch)
    trainer = subject.trainer(max_epochs=3, callbacks=[compiled, Losses()], limit_val_batches=0)
    trainer.fit(module)
    rows = list(module.rows)
    mean = trainer.callback_metrics["loss"]
    again = subject.trainer()
    val_loss = again.validate(module)[0]["val_loss"]
    predicted = torch.cat(again.predict(module))
    counts = [after - before for before, after in zip([0, *compiled.counts], compiled.counts)]
    return Padding(losses, rows, counts, mean, val_loss, predicted)


class Blocks(stratagem.Module):
    """Linear blocks in a list, wide enough to be worth cutting."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.width = width

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0]
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1)
        return DataLoader(TensorDataset(torch.randn(32, self.width, generator=generator)), 8)


class Layouts(stratagem.Callback):
    """Notes how parameters and optimizer states lie on the devices after each step."""

    def __init__(self) -> None:
        self.parameters: list[str] = []
        self.states: list[str] = []
        self.names: list[str] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        from stratagem_xla.sharding import spec_of

        self.parameters = [spec_of(parameter) for parameter in module.parameters()]
        states = trainer.prepared.optimizers[0].state.values()
        self.states = [spec_of(state["exp_avg"]) for state in states]
        self.names = [name for name, _ in module.named_parameters()]


def layouts(subject: StrategySubject) -> tuple[list[str], list[str], list[str], dict[str, int]]:
    seen = Layouts()
    module = Blocks()
    subject.trainer(max_epochs=1, callbacks=[seen]).fit(module)
    hooks = {
        name: len(each._backward_hooks) + len(each._forward_hooks) for name, each in module.named_modules()
    }
    return seen.parameters, seen.states, seen.names, hooks


def own_loop(subject: StrategySubject, path: str) -> tuple[list[float], list[float]]:
    """Step, save, step on; load, and step on alike."""
    return subject.runtime(seed=3).launch(_loop, path, quiet=True)


def _loop(runtime: stratagem.Runtime, path: str) -> tuple[list[float], list[float]]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    model, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters(), lr=0.1))
    loader = runtime.dataloader(DataLoader(TensorDataset(torch.randn(24, 4)), 8))

    def epoch() -> list[float]:
        losses = []
        for (x,) in loader:
            loss = model(x).square().mean()
            runtime.backward(loss)
            runtime.clip(optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses

    epoch()
    runtime.save(path)
    epoch_index = loader.epoch
    first = epoch()
    runtime.load(path)
    loader.epoch = epoch_index
    return first, epoch()


def starts_after_a_backward(subject: StrategySubject) -> str:
    torch.ones(1, requires_grad=True).sum().backward()
    return refusal(subject)


def starts_with_another_number(subject: StrategySubject) -> str:
    subject.runtime().launch(_nothing, quiet=True)
    return refusal(subject.at(subject.world_size - 1))


def refusal(subject: StrategySubject) -> str:
    try:
        subject.runtime().launch(_nothing, quiet=True)
    except stratagem.UsageError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _nothing(runtime: stratagem.Runtime) -> None:
    return None


def launch_processes(subject: StrategySubject) -> Any:
    """What torch_xla.launch starts, which on a CPU is one process; here in a process that launched nothing."""
    from stratagem_launch import ElasticLauncher
    from stratagem_xla.processes import XlaLauncher

    from stratagem.environments.single import SingleProcess
    from stratagem.launchers.base import LaunchPlan, Task
    from stratagem.plugin.requests import LaunchRequest

    request = LaunchRequest(LaunchPlan(1, start_method="spawn"), SingleProcess({}), ElasticLauncher)
    return XlaLauncher(request).launch(Task(train_in_a_process, (subject,)))


def train_in_a_process(subject: StrategySubject) -> tuple[Trained, str]:
    """Train where torch_xla.launch left us."""
    import os

    return train(subject, Recipe()), os.environ["WORLD_SIZE"]
