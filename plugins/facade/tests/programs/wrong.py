"""Programs that type checkers refuse. The comment of each wrong line names the errors of mypy and of pyright."""

from __future__ import annotations

from typing import Any

import torch
from stratagem_ddp import DDPStrategy
from stratagem_callbacks import ThroughputMonitr  # mypy: attr-defined; pyright: reportAttributeAccessIssue
from stratagem_trainer.callbacks import EarlyStopping
from torch import nn
from torch.optim import SGD

import stratagem
from stratagem import Module, Runtime, Trainer
from stratagem import Traner  # mypy: attr-defined; pyright: reportAttributeAccessIssue

stratagem.Trainr  # mypy: attr-defined; pyright: reportAttributeAccessIssue

Trainer(max_epoch=3)  # mypy: call-arg; pyright: reportCallIssue
Trainer(gpus=2)  # mypy: call-arg; pyright: reportCallIssue
Trainer(max_epochs="3")  # mypy: arg-type; pyright: reportArgumentType
Trainer(devices="two")  # mypy: arg-type; pyright: reportArgumentType
Trainer(strategy=3)  # mypy: arg-type; pyright: reportArgumentType
Trainer(log_level="loud")  # mypy: arg-type; pyright: reportArgumentType
Trainer(profiler="simpel")  # mypy: arg-type; pyright: reportArgumentType
Trainer(gradient_clip_algorithm="nrom")  # mypy: arg-type; pyright: reportArgumentType
Trainer(strategy_option={"find_unused_parameters": True})  # mypy: call-arg; pyright: reportCallIssue
Trainer().ftt(Module())  # mypy: attr-defined; pyright: reportAttributeAccessIssue

Runtime(precission="bf16-mixed")  # mypy: call-arg; pyright: reportCallIssue
Runtime(devices="two")  # mypy: arg-type; pyright: reportArgumentType
Runtime(accelerator=2)  # mypy: arg-type; pyright: reportArgumentType
Runtime().lunch()  # mypy: attr-defined; pyright: reportAttributeAccessIssue

DDPStrategy(start_method="thread")  # mypy: arg-type; pyright: reportArgumentType
DDPStrategy(find_unused_parameter=True)  # mypy: call-arg; pyright: reportCallIssue
EarlyStopping("val_loss", mode="minimum")  # mypy: arg-type; pyright: reportArgumentType


class Net(Module):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self(batch).mean()
        self.log("loss", loss, prog_baar=True)  # mypy: call-arg; pyright: reportCallIssue
        self.log("loss", loss, reduce_fx="average")  # mypy: arg-type; pyright: reportArgumentType
        self.log_dict({"loss": loss}, onstep=True)  # mypy: call-arg; pyright: reportCallIssue
        return loss


def train(runtime: Runtime, epochs: int) -> float:
    return 0.1 * epochs


def loop(runtime: Runtime) -> None:
    runtime.launch(train, "three")  # mypy: call-overload; pyright: reportArgumentType
    runtime.launch(train, epoch=3)  # mypy: call-overload; pyright: reportCallIssue
    loss: str = runtime.launch(train, 3)  # mypy: assignment; pyright: reportAssignmentType
    _, optimizer = runtime.setup(nn.Linear(1, 1), lambda module: SGD(module.parameters()))
    optimizer.stepp()  # mypy: attr-defined; pyright: reportAttributeAccessIssue
    runtime.setup(nn.Linear(1, 1), clip=1.0)  # mypy: call-overload; pyright: reportCallIssue
    runtime.all_reduce(torch.ones(1), "average")  # mypy: call-overload; pyright: reportCallIssue
    runtime.all_reduce(torch.ones(1)).itm()  # mypy: attr-defined; pyright: reportAttributeAccessIssue
    runtime.print(loss, ends="")  # mypy: call-arg; pyright: reportCallIssue
