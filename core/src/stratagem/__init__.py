"""Stratagem: train the same PyTorch model under any strategy, chosen by one flag.

Names are imported when they are first used, so that `import stratagem` alone loads no torch. Here are the core's. All
others, such as `Trainer`, come from distributions that name them in the entry-point group `stratagem.names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.names.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem.accelerators.base import Accelerator as Accelerator
    from stratagem.checkpoint.base import Checkpoint as Checkpoint
    from stratagem.checkpoint.base import Checkpointer as Checkpointer
    from stratagem.checkpoint.base import CheckpointReader as CheckpointReader
    from stratagem.checkpoint.wrapper import CheckpointerWrapper as CheckpointerWrapper
    from stratagem.collectives.base import Collectives as Collectives
    from stratagem.collectives.deadline import deadline as deadline
    from stratagem.collectives.local import LocalCollectives as LocalCollectives
    from stratagem.collectives.process_group import ProcessGroupCollectives as ProcessGroupCollectives
    from stratagem.collectives.wrapper import CollectivesWrapper as CollectivesWrapper
    from stratagem.config import RunConfig as RunConfig
    from stratagem.data.sampler import ShardedSampler as ShardedSampler
    from stratagem.environments.base import Environment as Environment
    from stratagem.errors import CheckpointError as CheckpointError
    from stratagem.errors import CombinationError as CombinationError
    from stratagem.errors import ConfigError as ConfigError
    from stratagem.errors import DeviceError as DeviceError
    from stratagem.errors import PrecisionError as PrecisionError
    from stratagem.errors import ReplicaError as ReplicaError
    from stratagem.errors import StratagemError as StratagemError
    from stratagem.errors import UsageError as UsageError
    from stratagem.errors import WorkerError as WorkerError
    from stratagem.launchers.base import Launcher as Launcher
    from stratagem.launchers.base import LaunchPlan as LaunchPlan
    from stratagem.launchers.base import Task as Task
    from stratagem.launchers.wrapper import LauncherWrapper as LauncherWrapper
    from stratagem.plugin.component import Availability as Availability
    from stratagem.plugin.component import Capabilities as Capabilities
    from stratagem.plugin.component import Component as Component
    from stratagem.plugin.hookspecs import hookimpl as hookimpl
    from stratagem.plugin.requests import CheckpointRequest as CheckpointRequest
    from stratagem.plugin.requests import Clipping as Clipping
    from stratagem.plugin.requests import LaunchRequest as LaunchRequest
    from stratagem.plugin.requests import LoopPlan as LoopPlan
    from stratagem.plugin.requests import ModuleSteps as ModuleSteps
    from stratagem.plugin.requests import PrecisionRequest as PrecisionRequest
    from stratagem.plugin.requests import ReduceRequest as ReduceRequest
    from stratagem.plugin.requests import SetupRequest as SetupRequest
    from stratagem.precision.base import Precision as Precision
    from stratagem.precision.wrapper import PrecisionWrapper as PrecisionWrapper
    from stratagem.runtime.runtime import Runtime as Runtime
    from stratagem.strategies.base import ParallelStrategy as ParallelStrategy
    from stratagem.strategies.base import Strategy as Strategy
    from stratagem.strategies.loss_sum import LossSum as LossSum
    from stratagem.strategies.prepared import Prepared as Prepared
    from stratagem.strategies.prepared import place as place
    from stratagem.strategies.process_group import ProcessGroupStrategy as ProcessGroupStrategy
    from stratagem.strategies.replica import Replica as Replica
    from stratagem.strategies.wrapper import PreparedWrapper as PreparedWrapper

__version__ = "0.1.0"

_HOMES = {
    "stratagem.accelerators.base": "Accelerator",
    "stratagem.checkpoint.base": "Checkpoint CheckpointReader Checkpointer",
    "stratagem.checkpoint.wrapper": "CheckpointerWrapper",
    "stratagem.collectives.base": "Collectives",
    "stratagem.collectives.deadline": "deadline",
    "stratagem.collectives.local": "LocalCollectives",
    "stratagem.collectives.process_group": "ProcessGroupCollectives",
    "stratagem.collectives.wrapper": "CollectivesWrapper",
    "stratagem.config": "RunConfig",
    "stratagem.data.sampler": "ShardedSampler",
    "stratagem.environments.base": "Environment",
    "stratagem.errors": "CheckpointError CombinationError ConfigError DeviceError "
    "PrecisionError ReplicaError StratagemError UsageError WorkerError",
    "stratagem.launchers.base": "LaunchPlan Launcher Task",
    "stratagem.launchers.wrapper": "LauncherWrapper",
    "stratagem.plugin.component": "Availability Capabilities Component",
    "stratagem.plugin.hookspecs": "hookimpl",
    "stratagem.plugin.requests": "CheckpointRequest Clipping LaunchRequest LoopPlan "
    "ModuleSteps PrecisionRequest ReduceRequest SetupRequest",
    "stratagem.precision.base": "Precision",
    "stratagem.precision.wrapper": "PrecisionWrapper",
    "stratagem.runtime.runtime": "Runtime",
    "stratagem.strategies.base": "ParallelStrategy Strategy",
    "stratagem.strategies.loss_sum": "LossSum",
    "stratagem.strategies.prepared": "Prepared place",
    "stratagem.strategies.process_group": "ProcessGroupStrategy",
    "stratagem.strategies.replica": "Replica",
    "stratagem.strategies.wrapper": "PreparedWrapper",
}
"""Module → names that are imported from it when they are first used."""

if not TYPE_CHECKING:  # a checker that sees `__getattr__` takes any name for one that is there
    _core_name, _core_names = lazy_names(__name__, _HOMES)

    def __getattr__(name):
        if name == "__all__":  # asked for by `from stratagem import *`
            return __dir__()[:-1]
        if name in _core_names() or name.startswith("_"):
            return _core_name(name)
        from stratagem.names.facade import facade_name

        return facade_name(name)

    def __dir__():
        from stratagem.names.facade import facade_names

        return [*sorted({*_core_names(), *facade_names()}), "__version__"]
