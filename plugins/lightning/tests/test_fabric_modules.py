"""What `Fabric.setup` returns, and modules with steps on Fabric."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import stratagem_lightning as L
import torch
from torch import nn

from stratagem.errors import ConfigError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).sum()


class Stepping(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.manual_backward(self.layer(batch).sum())
        self.clip_gradients(self.optimizers(), 0.5, "value")
        return self.layer(batch).sum()

    def quiet(self, logged: Any, **how: Any) -> None:
        self.log("value", logged, **how)


class Kept(L.pytorch.loggers.CSVLogger):
    def __init__(self, folder: Any) -> None:
        super().__init__(str(folder))
        self.rows: list[Any] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append(dict(metrics))


@pytest.fixture
def fabric(request: pytest.FixtureRequest) -> Any:
    made = L.Fabric(accelerator="cpu", devices=1, **getattr(request, "param", {}))
    made.launch()
    yield made
    made.close()


X = torch.ones(2, 3)
MIXED = pytest.mark.parametrize("fabric", [{"precision": "bf16-mixed"}], indirect=True)


def test_on_one_device_it_is_the_module_and_has_fabrics_names(fabric: Any) -> None:
    net = Net()
    wrapped = fabric.setup(net)
    assert wrapped.module is net
    assert wrapped.score(X) == net.score(X)
    wrapped.scale, net.layer.bias = 3.0, nn.Parameter(torch.ones(1))
    assert (net.scale, wrapped.layer) == (3.0, net.layer)
    assert (
        list(wrapped.state_dict()) == list(dict(wrapped.named_parameters())) == ["layer.weight", "layer.bias"]
    )
    assert wrapped(X).tolist() == net(X).tolist()


@MIXED
def test_marked_methods_have_the_runs_precision_and_others_are_refused(fabric: Any) -> None:
    wrapped = fabric.setup(Net())
    with pytest.raises(
        ConfigError, match=r"Net.score calls layers, .* call mark_forward_method\('score'\) first"
    ):
        wrapped.score(X)
    wrapped.mark_forward_method(wrapped.score)
    with torch.autocast("cpu", torch.bfloat16):
        expected = wrapped.module.score(X)
    assert wrapped.score(X) == expected != wrapped.module.score(X)


@pytest.mark.parametrize("name", ["forward", "layer", "nothing"])
def test_what_is_no_method_cannot_be_marked(fabric: Any, name: str) -> None:
    said = f"mark_forward_method got '{name}': give the name of a method of Net other than forward"
    with pytest.raises(ConfigError, match=said):
        fabric.setup(Net()).mark_forward_method(name)


def test_a_module_with_steps_asks_fabric(fabric: Any, tmp_path: Any) -> None:
    fabric._loggers = [Kept(tmp_path)]
    module = Stepping()
    assert module.fabric is None
    wrapped, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=1.0))
    wrapped.training_step(X, 0)
    assert module.layer.weight.grad.tolist() == [[0.5] * 3]
    assert (module.fabric, module.optimizers()) == (fabric, optimizer)
    assert (module.trainer.is_global_zero, module.current_epoch, module.global_step) == (True, 0, 0)
    assert (module.global_rank, module.device, module.logger) == (0, fabric.device, fabric.logger)
    module.quiet(torch.tensor(2.0), prog_bar=True)
    module.quiet(3, logger=False)
    assert fabric.logger.rows == [{"value": 2.0}]
    assert copy.deepcopy(module).fabric is None


def test_what_fabric_has_not_is_reported(fabric: Any) -> None:
    module = Stepping()
    fabric.setup(module)
    with pytest.raises(
        AttributeError, match=re.escape("self.trainer.max_epochs isn't there on Fabric: ask for it where")
    ):
        _ = module.trainer.max_epochs
    with pytest.raises(TypeError, match="bogus"):
        module.quiet(1.0, bogus=True)
    fabric._loggers = []
    with pytest.raises(
        ConfigError, match="'value' is logged with a Tensor, not a number or a tensor of one element"
    ):
        module.quiet(torch.ones(2))
    with pytest.raises(ConfigError, match="'value' is logged with a str, not"):
        module.quiet("high")


def test_what_fabric_cannot_is_reported_by_name(fabric: Any) -> None:
    wrapped, optimizer = fabric.setup(net := Net(), torch.optim.SGD(net.parameters(), lr=1.0))
    with pytest.raises(
        AttributeError, match="Fabric has no attribute 'setup_optimizers': pass them to setup, with"
    ):
        fabric.setup_optimizers(optimizer)
    assert not hasattr(fabric, "bogus")
    with pytest.raises(
        AttributeError, match="Trainer has no attribute 'received_sigterm': should_stop ends a fit"
    ):
        _ = L.Trainer(accelerator="cpu").received_sigterm
    with pytest.raises(ConfigError, match="clip_gradients got clip_val and max_norm: give one of them"):
        fabric.clip_gradients(wrapped, optimizer, clip_val=1.0, max_norm=1.0)
    with pytest.raises(ConfigError, match="setup got an object of FabricModule first"):
        fabric.setup(wrapped)


def test_numbers_are_gathered_in_tensors_on_one_rank_too(fabric: Any) -> None:
    gathered = fabric.all_gather({"a": 2, "b": torch.ones(2)})
    assert (gathered["a"].item(), gathered["b"].tolist()) == (2, [1.0, 1.0])
    module = Stepping()
    fabric.setup(module)
    assert module.all_gather(0.5).item() == 0.5
