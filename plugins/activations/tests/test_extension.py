"""Activations that are recomputed or offloaded change no bit, under any strategy."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_activations import Activations
from stratagem_model_parallel import ModelParallelStrategy
from torch import nn

from stratagem import ConfigError, Module, Prepared, Runtime, SetupRequest, Trainer, hookimpl

MODES = ("none", "full", "selective", "offload")


class Block(nn.Module):
    """Draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.drop, self.second = nn.Dropout(0.2), nn.Linear(16, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = value + self.second(self.drop(torch.relu(self.norm(self.first(value)))))
        return result


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 3))


def replaced(net: nn.Module) -> int:
    """Return how many modules have a forward of their own."""
    return sum("forward" in vars(each) for each in net.modules())


class Splittable(nn.Module):
    """A block whose inner layers can be split among ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = value + self.down(torch.relu(self.up(self.norm(value))))
        return result


def train(runtime: Runtime) -> list[float]:
    """Return the losses of steps on this rank's own data."""
    return steps(runtime, make_net(), seed=10 + runtime.rank)


def train_split(runtime: Runtime) -> list[float]:
    """Return the losses of steps on data that the ranks of one model share."""
    torch.manual_seed(1)
    return steps(runtime, nn.Sequential(Splittable(), Splittable(), nn.Linear(8, 3)), seed=10)


def steps(runtime: Runtime, net: nn.Module, seed: int) -> list[float]:
    module, optimizer = runtime.setup(net, torch.optim.AdamW(net.parameters(), 0.01))
    torch.manual_seed(seed)
    losses = []
    for _ in range(3):
        loss = nn.functional.mse_loss(module(torch.randn(4, 8)), torch.randn(4, 3))
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Net(Module):
    """The same by a Trainer, whose strategies may split the layers into stages."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def training_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> torch.Tensor:
        value, target = batch
        return nn.functional.mse_loss(self.net(value), target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.01)


def fit(strategy: Any, devices: int, mode: Any, folder: Path) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    data = torch.utils.data.TensorDataset(
        torch.randn(24, 8, generator=generator), torch.randn(24, 3, generator=generator)
    )
    module = Net()
    Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        plugins=[Activations(mode)],
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
        seed=7,
    ).fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return [parameter.detach().clone() for parameter in module.parameters()]


def launch(strategy: str, devices: int, mode: Any) -> list[float]:
    runtime = Runtime(strategy, accelerator="cpu", devices=devices, plugins=[Activations(mode)])
    losses: list[float] = runtime.launch(train, quiet=True)
    return losses


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [
        ("single", 1),
        ("dp", 2),
        ("fsdp", 2),
        *(
            pytest.param(name, 2, marks=pytest.mark.long)
            for name in (
                "ddp",
                "ddp_sharded",
                "ddp_fully_sharded",
                "diloco",
                "bagua",
                "fairscale_sharded",
                "deepspeed_stage_2",
                "deepspeed_stage_3",
            )
        ),
    ],
)
def test_own_loops_have_the_same_losses_to_the_bit(strategy: str, devices: int) -> None:
    results = {mode: launch(strategy, devices, mode) for mode in MODES}
    assert {mode: losses == results["none"] for mode, losses in results.items()} == dict.fromkeys(MODES, True)
    assert len(set(results["none"])) == 3


@pytest.mark.long
def test_a_model_split_among_ranks_has_the_same_losses_to_the_bit() -> None:
    results = []
    for mode in MODES:
        strategy = ModelParallelStrategy(parallelize={"[01].up": "colwise", "[01].down": "rowwise"})
        plugins = [Activations(mode)]  # type: ignore[arg-type]  # one of its modes
        runtime = Runtime(strategy, accelerator="cpu", devices=2, plugins=plugins)
        results.append(runtime.launch(train_split, quiet=True))
    assert results == [results[0]] * len(MODES)
    assert len(set(results[0])) == 3


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [
        ("single", 1),
        *(pytest.param(name, 2, marks=pytest.mark.long) for name in ("pipeline", "fairscale_pipe")),
    ],
)
def test_fits_have_the_same_weights_to_the_bit(strategy: str, devices: int, tmp_path: Path) -> None:
    plain = fit(strategy, devices, "none", tmp_path)
    for mode in MODES[1:]:
        assert all(map(torch.equal, fit(strategy, devices, mode, tmp_path), plain)), mode


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_run_gives_the_forwards_back(mode: Any) -> None:
    net = make_net()

    def set_up(runtime: Runtime) -> int:
        runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        return replaced(net)

    within = Runtime("single", accelerator="cpu", plugins=[Activations(mode)]).launch(set_up, quiet=True)
    assert (within, replaced(net)) == (2, 0)


class Refusing:
    """Refuses each module, as a strategy may."""

    @hookimpl(wrapper=True, trylast=True)
    def setup(self, request: SetupRequest) -> Generator[None, Prepared, Prepared]:
        raise ConfigError("not this one")
        yield


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_module_that_a_strategy_refuses_has_its_forwards_back(mode: Any) -> None:
    net = make_net()

    def set_up(runtime: Runtime) -> None:
        runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))

    runtime = Runtime("single", accelerator="cpu", plugins=[Activations(mode), Refusing()])
    with pytest.raises(ConfigError, match=r"^not this one$"):
        runtime.launch(set_up, quiet=True)
    assert replaced(net) == 0


def test_an_evaluation_is_left_alone(tmp_path: Path) -> None:
    class Evaluated(Net):
        def test_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> None:
            self.replaced = replaced(self.net)

    module = Evaluated()
    data = torch.utils.data.TensorDataset(torch.randn(4, 8), torch.randn(4, 3))
    trainer = Trainer(
        accelerator="cpu", plugins=[Activations("full")], logger=False, default_root_dir=tmp_path
    )
    trainer.test(module, torch.utils.data.DataLoader(data, batch_size=4))
    assert module.replaced == 0


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^mode='all' must be one of none, selective, full, offload$"):
        Activations("all")  # type: ignore[arg-type]  # wrong on purpose


def test_a_model_without_blocks_is_refused() -> None:
    def set_up(runtime: Runtime) -> None:
        net = nn.Linear(2, 2)
        runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))

    runtime = Runtime("single", accelerator="cpu", plugins=["activations_full"])
    with pytest.raises(
        ConfigError, match=r"^Linear has no ModuleList, and no Sequential of composed modules"
    ):
        runtime.launch(set_up, quiet=True)


def exchanged(net: nn.Module, backward: Any) -> None:
    values = {name: each * 2 for name, each in net.named_parameters()}
    backward(torch.func.functional_call(net, values, torch.ones(2, 8)).sum())


def stepped(net: nn.Module, backward: Any) -> None:
    loss = net(torch.ones(2, 8)).sum()
    with torch.no_grad():
        net.get_parameter("0.first.weight").mul_(2)
    backward(loss)


def frozen(net: nn.Module, backward: Any) -> None:
    loss = net(torch.ones(2, 8)).sum()
    net.get_parameter("0.first.weight").requires_grad_(False)
    backward(loss)


def between(runtime: Runtime, change: Any) -> None:
    net = make_net()
    model, _ = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    change(model if change is exchanged else net, lambda loss: runtime.backward(loss, model))


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("change", [exchanged, stepped, frozen])
def test_parameters_that_are_others_in_backward_are_refused(mode: Any, change: Any) -> None:
    """Torch computes gradients by those of today, without a word: it saves a block's inputs alone."""
    runtime = Runtime("single", accelerator="cpu", plugins=[Activations(mode)], seed=1)
    with pytest.raises(
        ConfigError, match="was changed, exchanged or frozen between a forward and its backward"
    ):
        runtime.launch(between, change, quiet=True)
