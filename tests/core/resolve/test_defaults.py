"""What answers a hook that no plugin answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_clusters import TorchElastic
from torch import nn

from stratagem.collectives.local import LocalCollectives
from stratagem.environments.single import SingleProcess
from stratagem.launchers.base import LaunchPlan
from stratagem.launchers.in_process import InProcessLauncher
from stratagem.plugin.hookspecs import RUN_HOOKS
from stratagem.plugin.requests import (
    CheckpointRequest,
    LaunchRequest,
    PrecisionRequest,
    ReduceRequest,
    SetupRequest,
)
from stratagem.plugin.sealing import MARKER
from stratagem.precision.base import Precision
from stratagem.resolve.defaults import Defaults
from stratagem.strategies.prepared import Prepared

CPU, META = torch.device("cpu"), torch.device("meta")
WORKER = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}
DEFAULTS = Defaults()


def launched(environment: Any, plan: LaunchPlan) -> Any:
    def create(plan: LaunchPlan) -> Any:
        return "made", plan

    return DEFAULTS.launch(LaunchRequest(plan, environment, create))


@pytest.mark.parametrize(
    ("environment", "processes"),
    [(SingleProcess({}), 1), (TorchElastic(WORKER), 2), (TorchElastic(WORKER), 1)],
)
def test_a_run_that_needs_no_more_processes_is_in_this_one(environment: Any, processes: int) -> None:
    assert type(launched(environment, LaunchPlan(processes))) is InProcessLauncher


@pytest.mark.parametrize("plan", [LaunchPlan(2), LaunchPlan(1, num_nodes=2)])
def test_the_installed_launcher_makes_more(plan: LaunchPlan) -> None:
    assert launched(SingleProcess({}), plan) == ("made", plan)


def test_a_rank_is_alone_on_its_first_device() -> None:
    accelerator: Any = None
    made = DEFAULTS.reduce(ReduceRequest(SingleProcess({}), (META, CPU), accelerator))
    assert type(made) is LocalCollectives
    assert made.device == META


def test_the_selected_precision_and_checkpointer_are_made() -> None:
    def create(name: Any, device: torch.device) -> Any:
        return name, device

    accelerator: Any = None
    asked = PrecisionRequest("bf16-true", create, META, accelerator)
    assert DEFAULTS.precision(asked) == ("bf16-true", META)
    collectives = LocalCollectives(CPU)
    assert DEFAULTS.checkpoint(CheckpointRequest(lambda given: ["made", given], collectives)) == [
        "made",
        collectives,
    ]


def test_a_module_is_trained_on_one_device() -> None:
    net = nn.Linear(1, 1)
    request = SetupRequest(
        net, net, lambda: [torch.optim.SGD(net.parameters())], (CPU,), LocalCollectives(CPU), Precision()
    )
    prepared = DEFAULTS.setup(request)
    assert type(prepared) is Prepared
    assert prepared.module is net
    assert len(prepared.optimizers) == 1


@pytest.mark.parametrize("hook", RUN_HOOKS)
def test_each_hook_is_answered_after_everybody_else(hook: str) -> None:
    assert getattr(getattr(Defaults, hook), MARKER)["trylast"] is True
