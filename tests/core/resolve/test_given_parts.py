"""Parts of a run that are passed to a strategy's constructor: devices, an environment, a checkpointer."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from stratagem_checkpoint.directory import DirectoryCheckpointer
from stratagem_cpu.accelerator import CpuAccelerator
from stratagem_ddp import DDPStrategy
from stratagem_single import SingleDeviceStrategy

from stratagem.collectives.local import LocalCollectives
from stratagem.config import RunConfig
from stratagem.environments.single import SingleProcess
from stratagem.errors import ConfigError, DeviceError
from stratagem.launchers.in_process import InProcessLauncher
from stratagem.precision.base import Precision
from stratagem.resolve.run import assemble

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is reported where there is no GPU")


def assembled(strategy: Any, **config: Any) -> Any:
    return assemble(RunConfig(strategy=strategy, **config))


@no_gpu
def test_devices_of_a_kind_that_is_not_here() -> None:
    with pytest.raises(DeviceError, match="no accelerator for devices of the type 'cuda' is available here"):
        assembled(SingleDeviceStrategy("cuda:0"))
    with pytest.raises(DeviceError, match="given the device 'cuda:0', but the run is on cpu"):
        assembled(SingleDeviceStrategy("cuda:0"), accelerator="cpu")
    with pytest.raises(DeviceError, match="the type 'meta'"):
        assembled(DDPStrategy(parallel_devices=[torch.device("meta")] * 2))


def test_devices_that_are_none() -> None:
    with pytest.raises(ConfigError, match="device='nonsense' can't be understood"):
        SingleDeviceStrategy("nonsense")
    with pytest.raises(DeviceError, match=r"give torch\.device objects"):
        assembled(DDPStrategy(parallel_devices=["nonsense"]))  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(DeviceError, match="of several types"):
        assembled(DDPStrategy(parallel_devices=[torch.device("cpu"), torch.device("cuda:0")]))


def test_devices_of_the_cpu() -> None:
    run = assembled(DDPStrategy(parallel_devices=[torch.device("cpu")] * 2))
    assert (run.plan.processes_per_node, run.accelerator.name) == (2, "cpu")
    assert assembled(SingleDeviceStrategy("cpu")).process_devices()[0] == torch.device("cpu")


def test_environment_as_an_object() -> None:
    environment = SingleProcess(os.environ)
    run = assembled(DDPStrategy(cluster_environment=environment), devices=2)
    assert run.environment is environment
    # Workers are in the environment of their launcher, not in this one.
    worker = run.worker_config(run.launcher())
    assert (worker.environment, worker.strategy.cluster_environment) == ("torchelastic", None)
    assert run.strategy.cluster_environment is environment
    with pytest.raises(ConfigError, match="isn't an environment: give a name"):
        assembled(DDPStrategy(cluster_environment=object()))  # type: ignore[arg-type]  # wrong on purpose


def test_checkpointer_as_an_object() -> None:
    checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")))
    run = assembled(SingleDeviceStrategy(checkpoint_io=checkpointer))
    assert isinstance(run.launcher(), InProcessLauncher)
    assert run.of_kind("checkpoint").value(LocalCollectives(torch.device("cpu"))) is checkpointer
    assert assembled(SingleDeviceStrategy(checkpoint_io=DirectoryCheckpointer)).of_kind("checkpoint").value
    with pytest.raises(ConfigError, match="checkpoint_io=3 is neither a Checkpointer nor a function"):
        assembled(SingleDeviceStrategy(checkpoint_io=3))  # type: ignore[arg-type]  # wrong on purpose


def test_options_of_a_checkpointer() -> None:
    local = LocalCollectives(torch.device("cpu"))
    run = assembled(SingleDeviceStrategy(), checkpoint_options={"async": True})
    checkpointer = run.of_kind("checkpoint").value(local)
    assert checkpointer.is_async
    checkpointer.close()
    assert not assembled(SingleDeviceStrategy()).of_kind("checkpoint").value(local).is_async
    with pytest.raises(ConfigError, match=r"checkpoint 'directory' has no setting 'asynk'; it has async$"):
        assembled(SingleDeviceStrategy(), checkpoint_options={"asynk": True})
    with pytest.raises(ConfigError, match="has no setting 'collectives'"):
        assembled(SingleDeviceStrategy(), checkpoint_options={"collectives": None})
    with pytest.raises(ConfigError, match=r"options \['async'\] go with a checkpointer's name"):
        assembled(
            SingleDeviceStrategy(checkpoint_io=DirectoryCheckpointer), checkpoint_options={"async": True}
        )


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        (DDPStrategy(), "strategy="),
        (Precision(), "precision="),
        (CpuAccelerator(), "accelerator="),
        (SingleProcess, "environment="),
        (DirectoryCheckpointer, "the strategy's checkpoint_io="),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
def test_a_part_among_the_plugins_is_refused_with_its_argument(given: Any, argument: str) -> None:
    with pytest.raises(ConfigError) as refused:
        assembled("single", accelerator="cpu", devices=1, extensions=(given,))
    assert str(refused.value).startswith("plugins takes objects with hooks and names of extensions, not ")
    assert str(refused.value).endswith(f": give that as {argument}")


def test_an_accelerator_that_is_none() -> None:
    with pytest.raises(ConfigError, match="accelerator=3 is neither a name nor an Accelerator"):
        assembled("single", accelerator=3)


@pytest.mark.skipif(
    torch.distributed.is_nccl_available(), reason="says what is reported where torch has no NCCL"
)
def test_a_backend_that_torch_lacks() -> None:
    for backend in ("nccl", "cpu:gloo,cuda:nccl"):
        with pytest.raises(
            ConfigError, match="'nccl', which this build of torch doesn't have; available: gloo"
        ):
            assembled(DDPStrategy(process_group_backend=backend), accelerator="cpu", devices=2)
    with pytest.raises(ConfigError, match="names 'glo', which this build"):
        assembled(DDPStrategy(process_group_backend="glo"), accelerator="cpu", devices=2)
    # What registers it may be imported in the workers.
    assembled(DDPStrategy(process_group_backend="of_a_plugin"), accelerator="cpu", devices=2)
