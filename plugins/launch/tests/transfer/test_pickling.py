"""A module reaches workers as it is: with hooks, gradients and shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hooked
import pytest
import torch
from small import Line
from stratagem_launch.elastic import ElasticLauncher
from torch import nn

import stratagem
from stratagem import LaunchPlan, Task


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


def test_a_hook_that_no_worker_can_import_is_sent_by_value() -> None:
    module, factor = Line(), torch.full((), 2.0)
    module.layer.weight.register_hook(lambda gradient: gradient * factor)
    module.layer.bias.register_post_accumulate_grad_hook(
        lambda parameter: setattr(parameter, "grad", parameter.grad * factor)
    )
    assert on_a_worker(gradients, module, method="popen") == gradients(module) == [2.0] * 5


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


def gradients(module: Line) -> list[float]:
    module.layer(torch.ones(1, 4)).sum().backward()
    return [value for p in module.layer.parameters() for value in p.grad.flatten().tolist()]


class Ordered(stratagem.Module):
    """Trains with hooks that scale gradients, on batches that are all alike."""

    def __init__(self, hooked_module: nn.Module) -> None:
        super().__init__()
        self.inner = hooked_module.layer

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.inner(batch.requires_grad_()).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)
