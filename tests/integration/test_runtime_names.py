"""Names of `Runtime` for loops that were written for Fabric, on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, samples
from stratagem_ddp import DDPStrategy
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import CheckpointError


def on_ranks(world_size: int, function: Any, *args: Any) -> Any:
    """Run `function(runtime, *args)` on forked ranks; returns rank 0's value."""
    strategy = DDPStrategy(start_method="fork")
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=world_size, seed=3)
    return runtime.launch(function, *args, quiet=True)


def two_players(runtime: Any, weighs: bool) -> list[Any]:
    """A generator's loss goes through both modules, as a GAN's does."""
    torch.manual_seed(0)
    one, other = nn.Linear(4, 4), nn.Linear(4, 1)
    first, first_optimizer = runtime.setup(one, SGD(one.parameters(), lr=0.1))
    second, second_optimizer = runtime.setup(other, SGD(other.parameters(), lr=0.1))
    for x, _ in runtime.setup_dataloaders(DataLoader(samples(8), 4 // runtime.world_size)):
        with runtime.autocast():
            loss = second(first(x)).square().mean()
        runtime.backward(loss, **({"module": first} if weighs else {}))
        for module, optimizer in ((first, first_optimizer), (second, second_optimizer)):
            norm = runtime.clip_gradients(module, optimizer, max_norm=0.5)
            assert norm.isfinite()
            optimizer.step()
            optimizer.zero_grad()
    return [one.weight.tolist(), other.weight.tolist()]


def test_one_backward_of_several_modules() -> None:
    alone, together = on_ranks(1, two_players, True), on_ranks(2, two_players, False)
    for expected, found in zip(alone, together):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))


def keeps(runtime: Any, path: str, load: bool) -> Any:
    model = Line()
    wrapped, optimizer = runtime.setup(model, SGD(model.parameters(), lr=0.1, momentum=0.9))
    scheduler = StepLR(optimizer, 1)
    state = {"model": wrapped, "optimizer": optimizer, "scheduler": scheduler, "step": 0, "extra": None}
    if load:
        wanted = {name: value for name, value in state.items() if name != "extra"}
        rest = runtime.load(path, wanted)
        assert rest == {"extra": "kept"}
        return wanted["step"], scheduler.last_epoch, model.layer.weight.tolist()
    loss = F.mse_loss(wrapped(samples(8).tensors[0]), samples(8).tensors[1])
    with runtime.no_backward_sync(wrapped, enabled=False):
        runtime.backward(loss)
    optimizer.step()
    scheduler.step()
    runtime.save(path, {**state, "step": 1, "extra": "kept"})
    with pytest.raises(CheckpointError, match=r"has no 'other' in its state, but \['extra'"):
        runtime.load(path, {"other": 1})
    return model.layer.weight.tolist()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_state_with_modules_optimizers_and_numbers(world_size: int, tmp_path: Path) -> None:
    path = str(tmp_path / "ckpt")
    weight = on_ranks(world_size, keeps, path, False)
    assert on_ranks(1, keeps, path, True) == (1, 1, weight)
