"""What a preset can't do is refused in a sentence, as early as it can be known."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from torch import nn

import stratagem
from stratagem.config import RunConfig
from stratagem.resolve.run import assemble


def refusal(make: Callable[[nn.Module], Any], **options: Any) -> None:
    """Raise what setting a net up in a worker raises."""
    strategy = DDPStrategy(start_method="fork", timeout_s=200, **options)
    stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=2).launch(set_up, make, quiet=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ddp_comm_hook": "fp8"}, "'fp8' must be one of fp16, bf16, powersgd, post_local_sgd"),
        ({"ddp_comm_hook": "fp16", "ddp_comm_state": {"rank": 1}}, "'rank', and ddp_comm_hook='fp16' has no"),
        ({"ddp_comm_hook": "powersgd", "ddp_comm_state": {"start_powerSGD_iter": 1}}, "from 2 on"),
        ({"ddp_comm_hook": "powersgd", "ddp_comm_state": {"matrix_approximation_rank": 0}}, "from 1 on"),
        ({"ddp_comm_hook": "powersgd", "ddp_comm_state": 3}, "takes its settings by name"),
        ({"ddp_comm_hook": "post_local_sgd"}, "give model_averaging_period or period_group_size"),
        ({"period_group_size": {4: 2, 2: 4}}, "makes no hierarchy"),
        ({"period_group_size": {2: 2, 4: 3}}, "makes no hierarchy"),
        ({"period_group_size": {}}, "makes no hierarchy"),
        ({"period_group_size": "often"}, 'neither "auto" nor'),
        ({"period_group_size": "auto", "model_averaging_period": 2}, "give one of them"),
    ],
)
def test_what_cant_be_is_refused_by_the_constructor(options: dict[str, Any], words: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=words):
        DDPStrategy(**options)


def set_up(runtime: Any, make: Callable[[nn.Module], Any]) -> None:
    module = nn.Linear(12, 3)
    if make is scalar:
        module.scale = nn.Parameter(torch.ones(()))
    runtime.setup(module, make(module))


def scalar(module: nn.Module) -> torch.optim.Optimizer:
    """Stands for a module with a parameter that has no dimension."""
    return sgd(module)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def lbfgs(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(module.parameters())


def zero(module: nn.Module) -> torch.optim.Optimizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)


LOCAL_SGD = {"ddp_comm_hook": "post_local_sgd", "model_averaging_period": 2}


@pytest.mark.parametrize(
    ("options", "make", "words"),
    [
        (LOCAL_SGD, lbfgs, "LBFGS needs all ranks in one step"),
        (LOCAL_SGD, zero, "ZeroRedundancyOptimizer needs all ranks in one step"),
        ({"ddp_comm_hook": "powersgd"}, scalar, "parameter 'scale' has no dimension"),
    ],
)
def test_what_cant_be_here_is_refused_before_training(
    options: dict[str, Any], make: Callable[[nn.Module], Any], words: str
) -> None:
    with pytest.raises(stratagem.ConfigError, match=words):
        refusal(make, **options)


@pytest.mark.parametrize(
    ("options", "num_nodes", "words"),
    [
        ({"period_group_size": {2: 3, 4: 6}}, 1, "groups of 3 ranks, which don't divide the 2 ranks"),
        ({"period_group_size": {2: 1}}, 1, "the last group size of period_group_size is 1"),
        ({"period_group_size": {2: 2}}, 2, "is 2, and there are 4 ranks"),
        ({"period_group_size": {2: 2}}, "1:2", "which num_nodes='1:2' lets change"),
        ({**LOCAL_SGD, "ddp_comm_state": {"subgroup_size": 3}}, 1, "subgroup_size=3 doesn't divide"),
    ],
)
def test_groups_that_dont_fit_the_ranks_are_refused_before_launch(
    options: dict[str, Any], num_nodes: Any, words: str
) -> None:
    where = {"num_nodes": num_nodes, "rdzv_endpoint": None if num_nodes == 1 else "localhost:1"}
    with pytest.raises(stratagem.ConfigError, match=words):
        assemble(RunConfig(strategy=DDPStrategy(**options), accelerator="cpu", devices=2, **where))


def test_groups_that_fit_and_a_number_of_nodes_that_changes_are_taken() -> None:
    taken = [({"period_group_size": {2: 2, 4: 4}}, 2), ({"period_group_size": "auto"}, "1:2")]
    for options, num_nodes in taken:
        strategy, where = DDPStrategy(**options), {"num_nodes": num_nodes, "rdzv_endpoint": "localhost:1"}
        run = assemble(RunConfig(strategy=strategy, accelerator="cpu", devices=2, **where))
        assert run.strategy is strategy


@pytest.mark.parametrize("preset", ["ddp_powersgd", "ddp_post_local_sgd"])
def test_loss_scaling_is_refused_where_ranks_or_memory_would_break(preset: str) -> None:
    runtime = stratagem.Runtime(
        strategy=preset,
        strategy_options={"start_method": "fork"},
        accelerator="cpu",
        devices=2,
        precision="16-mixed",
    )
    with pytest.raises(stratagem.ConfigError, match="choose bf16-mixed or 32-true"):
        runtime.launch(set_up, sgd, quiet=True)
