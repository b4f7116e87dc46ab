"""Programs that type checkers accept. `assert_type` checks what they know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import stratagem_trainer
import torch
from stratagem_ddp import DDPStrategy
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import assert_type

import stratagem
from stratagem import Callback, Module, Runtime, Trainer, errors
from stratagem.sdk import runs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result

    def describe(self) -> str:
        return "a net"


class Regression(Module):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self(batch[0]).mean()
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"a": 1.0}, on_epoch=True)
        self.print("loss", loss, sep=": ")
        return loss


class OtherSteps(Module):
    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None: ...

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> torch.Tensor:
        prediction: torch.Tensor = self(batch)
        return prediction


class Texts:
    def __iter__(self) -> Iterator[list[str]]:
        return iter([["a"]])


def make_optimizer(module: Net) -> SGD:
    return SGD(module.parameters(), lr=0.1)


def train(runtime: Runtime, epochs: int, rate: float = 0.1) -> dict[str, float]:
    return {"loss": epochs * rate}


def untyped(runtime, epochs):  # type: ignore[no-untyped-def]  # as most programs are written
    return epochs


def trainers() -> None:
    Trainer(max_epochs=3)
    Trainer("cpu", [0, 1], strategy="ddp", precision=16, callbacks=[Callback()])
    Trainer(devices="auto", strategy=DDPStrategy(timeout_s=3.0), gradient_clip_algorithm="value")
    Trainer(strategy="other-plugins:strategy", precision="fp8", logger="mlflow", profiler="simple")
    Trainer(log_level="info", strategy_options={"bucket_cap_mb": 3}, check_replicas_every=7, run_dir="runs/1")
    trainer = Trainer(plugins=["record"], max_restarts=1)
    assert_type(trainer, stratagem_trainer.Trainer)
    assert_type(runs.RunOptions(max_restarts=1).get("max_restarts"), "int | None")
    assert_type(errors.ConfigError("a message"), errors.ConfigError)
    trainer.fit(Regression(), train_dataloaders=[1])
    assert_type(trainer.validate(Regression()), list[dict[str, float]])


def launched() -> None:
    runtime = Runtime("ddp", "cpu", 2, seed=1, run_dir="runs/2", max_restarts=1)
    assert_type(runtime.launch(train, 3), dict[str, float])
    assert_type(runtime.launch(train, 3, 0.2), dict[str, float])
    assert_type(runtime.launch(train, epochs=3, rate=0.2), dict[str, float])
    assert_type(runtime.launch(train, 3, quiet=True), dict[str, float])
    runtime.launch()
    runtime.launch(untyped, 3)


def own_loop(runtime: Runtime) -> None:
    net = Net()
    assert_type(runtime.setup(net), Net)
    assert_type(runtime.setup(net, Adam(net.parameters())), tuple[Net, Adam])
    assert_type(runtime.setup(net, make_optimizer), tuple[Net, SGD])
    assert_type(runtime.setup(net, lambda module: SGD(module.parameters()), accumulate=2), tuple[Net, SGD])
    assert_type(runtime.setup(net, Adam(net.parameters()), SGD(net.parameters())), tuple[Net, Adam, SGD])
    prepared, optimizer = runtime.setup(net, make_optimizer, forward_methods=["describe"])
    assert_type(prepared.describe(), str)
    optimizer.step()
    optimizer.zero_grad()
    first, *others = runtime.setup(net, make_optimizer, make_optimizer, make_optimizer)
    assert_type(first, Net)

    loader = runtime.dataloader(DataLoader(TensorDataset(torch.ones(8, 8)), batch_size=4))
    loader.epoch = 3
    for texts in runtime.dataloader(Texts()):
        assert_type(texts, list[str])
    for texts, counts in runtime.dataloader(Texts(), evaluation=True).pairs():
        assert_type(texts, list[str])
        assert_type(counts, bool)
    for texts in runtime.setup_dataloaders(Texts()):
        assert_type(texts, list[str])
    training, validation = runtime.setup_dataloaders(Texts(), Texts())
    for texts in training:
        assert_type(texts, list[str])

    loss = prepared(torch.ones(4, 8)).mean()
    runtime.backward(loss)
    assert_type(runtime.all_reduce(torch.ones(2)), torch.Tensor)
    assert_type(runtime.all_reduce(3), torch.Tensor)
    assert_type(runtime.all_reduce(True, "sum"), torch.Tensor)
    assert_type(runtime.all_reduce({"loss": 1.0}), dict[str, torch.Tensor])
    assert_type(runtime.all_reduce([1, 2], "max"), list[torch.Tensor])
    assert_type(
        runtime.all_reduce((torch.ones(1), {"a": torch.ones(1)})),
        tuple[torch.Tensor, dict[str, torch.Tensor]],
    )
    assert_type(runtime.all_gather({"loss": torch.ones(1)}), dict[str, torch.Tensor])
    runtime.print("done", end="")
    with runtime.no_sync(prepared):
        pass
    runtime.save("checkpoint", {"epoch": 3})
    assert_type(runtime.load("checkpoint"), dict[str, Any])
    stratagem.seed_everything(3)
