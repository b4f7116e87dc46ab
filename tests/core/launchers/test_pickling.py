"""A module reaches workers as it is: with hooks, gradients and shared memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import hooked
import pytest
import torch
from small import Line
from torch import nn

import stratagem
from stratagem.errors import UsageError
from stratagem.launchers import LaunchPlan, Task
from stratagem.launchers.elastic import ElasticLauncher
from stratagem.launchers.pickling import dumps, loads


def on_a_worker(function: Any, *args: Any, method: str) -> Any:
    return ElasticLauncher(LaunchPlan(1, start_method=method)).launch(Task(function, args))


@pytest.mark.parametrize("method", ["forkserver", "spawn", "popen", "fork"])
def test_a_module_is_in_workers_what_it_is_here(method: str) -> None:
    here = hooked.found(hooked.Hooked())
    assert here["weight"] == [[2.0 * 2 * 3 * 3] * 4]
    assert here["bias"] == [(0.5 + 2) * 10]
    assert here["row"] == [7.0] * 4
    module = hooked.Hooked()
    assert on_a_worker(hooked.found, module, method=method) == here
    # Here it stays as it was.
    assert len(module.layer.weight._backward_hooks) == 2
    assert module.layer.bias.grad == 0.5


@pytest.mark.parametrize("kind", ["hook", "after accumulation"])
def test_a_hook_that_cannot_be_sent_is_named(kind: str) -> None:
    module = Line()
    if kind == "hook":
        module.layer.weight.register_hook(lambda gradient: gradient * 2)
    else:
        module.layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    words = r"hook .*<lambda> on parameter 'layer.weight' can't be sent .*'popen'.*top level.*configure_model.*fork"
    with pytest.raises(UsageError, match=words):
        on_a_worker(hooked.found, module, method="popen")


def test_hooks_are_there_in_a_fit_and_once_afterwards(tmp_path: Path) -> None:
    def fit(strategy: Any, devices: int) -> Any:
        module = hooked.Hooked()
        trainer = stratagem.Trainer(
            strategy=strategy,
            accelerator="cpu",
            devices=devices,
            max_steps=2,
            run_dir=tmp_path,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
        )
        trainer.fit(Ordered(module), torch.utils.data.DataLoader([torch.ones(4)] * 16, 16 // devices))
        return module

    alone, ours = fit("single", 1), fit("ddp", 2)
    torch.testing.assert_close(ours.layer.weight, alone.layer.weight)
    torch.testing.assert_close(ours.layer.bias, alone.layer.bias)
    assert len(ours.layer.weight._backward_hooks) == 2


class Ordered(stratagem.Module):
    """Trains with hooks that scale gradients, on batches that are all alike."""

    def __init__(self, hooked_module: nn.Module) -> None:
        super().__init__()
        self.inner = hooked_module.layer

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.inner(batch.requires_grad_()).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_many_views_of_one_memory_are_sent_once() -> None:
    whole = torch.zeros(1000, 100)
    content = dumps(list(whole), "popen")
    assert len(content) < 2 * whole.nbytes
    rows = loads(content)
    rows[3] += 1
    assert rows[2].sum() == 0
    assert rows[3]._base is None
    assert len({row.untyped_storage().data_ptr() for row in rows}) == 1
    assert len(pickle.dumps(list(whole[:10]))) > 5 * whole.nbytes  # otherwise torch does so itself
