"""Training in float8, emulated: the numbers of torchao by hand, in one process and with replicas and shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_float8 import Float8
from stratagem_float8.torchao_private import Float8Layer
from stratagem_fsdp import FSDPStrategy
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from stratagem import Runtime
from stratagem.errors import UsageError

RECIPES = pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
MAX_NORM = 0.5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = value + self.down(torch.relu(self.up(self.norm(value))))
        return result


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.Sequential(Block(), Block()), nn.Linear(32, 3))


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


def batches(rank: int, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield two micro-batches per step. Rank 1's numbers are ten times as large, and so are their scales."""
    generator = torch.Generator().manual_seed(10 + rank)
    for _ in range(2 * steps):
        value = torch.randn(5, 16, generator=generator) * 10**rank
        yield value, value[:, :3] / 10**rank


def loss_of(net: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(net(batch[0]).float(), batch[1])


def by_hand(recipe: str | None, ranks: int, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train in this process as torchao does alone; return rank 0's losses, and the weights.

    Args:
        recipe: None for bfloat16 throughout.
        ranks: whose batches an optimizer step takes the mean gradient of.
        steps: optimizer steps, of two micro-batches each.
    """
    net = make_net()
    if recipe is not None:
        config = Float8LinearConfig.from_recipe_name(recipe)
        object.__setattr__(config, "emulate", True)
        convert_to_float8_training(
            net, module_filter_fn=lambda layer, _: layer.out_features % 16 == 0, config=config
        )
        for layer in net.modules():
            if type(layer).__name__ == "Float8Linear":
                layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
    optimizer, losses = make_optimizer(net), []
    data = [batches(rank, steps) for rank in range(ranks)]
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            for rank in range(ranks):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(net, next(data[rank]))
                (loss / (2 * ranks)).backward()
                losses += [loss.item()] if rank == 0 else []
        nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
    return losses, {name: value.detach() for name, value in net.state_dict().items()}


def train(
    runtime: Runtime, steps: int, save_to: str = "", load_from: str = "", skip: int = 0
) -> tuple[list[float], dict[str, torch.Tensor], list[str]]:
    """Train with `runtime`; return losses, whole weights, and classes of layers while it trains."""
    net = make_net()
    module, optimizer = runtime.setup(net, make_optimizer(net))
    if load_from:
        runtime.load(load_from)
    data, losses = batches(runtime.rank, steps), []
    for _ in range(2 * skip):
        next(data)
    for _ in range(steps - skip):
        for micro in range(2):
            with runtime.no_backward_sync(module, enabled=micro == 0):
                loss = loss_of(module, next(data))
                runtime.backward(loss / 2)
            losses.append(loss.item())
        runtime.clip_gradients(module, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    if save_to:
        runtime.save(save_to)
    kinds = [type(layer).__name__ for layer in net.modules() if isinstance(layer, nn.Linear)]
    weights = {name: whole(value) for name, value in net.state_dict().items()}
    return losses, weights, kinds


def whole(value: Any) -> torch.Tensor:
    result: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
    return result.detach()


def run(
    strategy: str, devices: int, precision: Any, *args: Any
) -> tuple[list[float], dict[str, torch.Tensor], list[str]]:
    runtime = Runtime(strategy, accelerator="cpu", devices=devices, precision=precision)
    return runtime.launch(train, *args, quiet=True)


def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@RECIPES
def test_one_process_has_every_bit_of_torchao_by_hand(recipe: str) -> None:
    losses, weights, kinds = run("single", 1, Float8(recipe, emulate=True), 4)
    assert kinds == ["Float8Layer"] * 5 + ["Linear"]
    wanted = by_hand(recipe, 1, 4)
    assert losses == wanted[0]
    assert apart(weights, wanted[1]) == 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@RECIPES
def test_ranks_scale_their_own_batches_and_whole_weights(strategy: str, recipe: str) -> None:
    losses, weights, kinds = run(strategy, 2, Float8(recipe, emulate=True), 4)
    assert sum(kind.endswith("Float8Layer") for kind in kinds) == 5
    wanted = by_hand(recipe, 2, 4)
    assert losses == pytest.approx(wanted[0], rel=1e-5)
    assert apart(weights, wanted[1]) < 1e-6


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_float8_is_near_bfloat16_and_differs_from_it(strategy: str) -> None:
    losses, _, _ = run(strategy, 2, "float8-emulated", 10)
    near, _ = by_hand(None, 2, 10)
    differences = [abs(a - b) for a, b in zip(losses, near)]
    assert 1e-4 < max(differences) < 0.1 * max(near)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resumed_run_has_every_bit_of_one_that_went_on(strategy: str, tmp_path: Path) -> None:
    precision = "float8-rowwise-emulated"
    whole_losses, weights, _ = run(strategy, 2, precision, 4)
    run(strategy, 2, precision, 2, str(tmp_path / "saved"))
    losses, resumed, _ = run(strategy, 2, precision, 4, "", str(tmp_path / "saved"), 2)
    assert losses == whole_losses[4:]
    assert apart(resumed, weights) == 0


@pytest.mark.long
def test_other_precisions_and_strategies_load_what_float8_saved_and_the_other_way(tmp_path: Path) -> None:
    steps = [
        ("ddp", "float8-emulated"),
        ("fsdp", "32-true"),
        ("fsdp", "float8-rowwise-emulated"),
        ("ddp", "bf16-mixed"),
    ]
    saved = ""
    for index, (strategy, precision) in enumerate(steps):
        path = str(tmp_path / str(index))
        _, before, _ = run(strategy, 2, precision, 1 + index, path, saved, index)
        # No steps further: the weights are those that were loaded.
        _, loaded, _ = run("single", 1, "32-true", 0, "", path)
        assert apart(before, loaded) == 0
        saved = path


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_the_users_module_has_its_own_layers_after_the_run(strategy: str) -> None:
    net = make_net()
    layers = {name: (id(layer), set(vars(layer))) for name, layer in net.named_modules()}
    called: list[bool] = []
    net[0].register_forward_hook(lambda layer, *_: called.append(isinstance(layer, Float8Layer)))

    def step(runtime: Runtime) -> None:
        module, _ = runtime.setup(net, make_optimizer(net))
        module(torch.randn(3, 16))

    Runtime(strategy, accelerator="cpu", devices=1, precision="float8-emulated").launch(step, quiet=True)
    assert called == [True]
    assert {name: (id(layer), set(vars(layer))) for name, layer in net.named_modules()} == layers
    assert {type(layer) for layer in net.modules() if isinstance(layer, nn.Linear)} == {nn.Linear}


def test_a_setup_that_is_refused_gives_layers_back() -> None:
    net, strategy = make_net(), FSDPStrategy(auto_wrap_policy=["NoSuchBlock"])

    def step(runtime: Runtime) -> None:
        runtime.setup(net, make_optimizer(net))

    with pytest.raises(UsageError, match="NoSuchBlock"):
        Runtime(strategy, accelerator="cpu", devices=1, precision="float8-emulated").launch(step, quiet=True)
    assert {type(layer) for layer in net.modules() if isinstance(layer, nn.Linear)} == {nn.Linear}
