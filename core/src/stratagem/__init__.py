"""Stratagem: train the same PyTorch model under any strategy, chosen by one flag.

Names are imported when they are first used, so that `import stratagem` alone loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_cli.flags import options
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.callbacks.early_stopping import EarlyStopping
    from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem_trainer.data.combined_loader import CombinedLoader
    from stratagem_trainer.data.data_module import DataModule
    from stratagem_trainer.loggers.base import Logger, Row
    from stratagem_trainer.module import Module
    from stratagem_trainer.rank_zero import rank_zero_only
    from stratagem_trainer.seeding import seed_everything
    from stratagem_trainer.trainer import Trainer

    from stratagem.accelerators.base import Accelerator
    from stratagem.checkpoint.base import Checkpoint, Checkpointer, CheckpointReader
    from stratagem.checkpoint.wrapper import CheckpointerWrapper
    from stratagem.collectives.base import Collectives
    from stratagem.collectives.deadline import deadline
    from stratagem.collectives.local import LocalCollectives
    from stratagem.collectives.process_group import ProcessGroupCollectives
    from stratagem.collectives.wrapper import CollectivesWrapper
    from stratagem.config import RunConfig
    from stratagem.data.sampler import ShardedSampler
    from stratagem.environments.base import Environment
    from stratagem.errors import (
        CheckpointError,
        CombinationError,
        ConfigError,
        DeviceError,
        PrecisionError,
        ReplicaError,
        StratagemError,
        UsageError,
        WorkerError,
    )
    from stratagem.launchers.base import Launcher, LaunchPlan, Task
    from stratagem.launchers.wrapper import LauncherWrapper
    from stratagem.plugin.component import Availability, Capabilities, Component
    from stratagem.plugin.hookspecs import hookimpl
    from stratagem.plugin.requests import (
        CheckpointRequest,
        Clipping,
        LaunchRequest,
        LoopPlan,
        ModuleSteps,
        PrecisionRequest,
        ReduceRequest,
        SetupRequest,
    )
    from stratagem.precision.base import Precision
    from stratagem.precision.wrapper import PrecisionWrapper
    from stratagem.runtime.runtime import Runtime
    from stratagem.strategies.base import ParallelStrategy, Strategy
    from stratagem.strategies.prepared import Prepared, place
    from stratagem.strategies.process_group import DeferringStrategy, ProcessGroupStrategy
    from stratagem.strategies.replica import Replica
    from stratagem.strategies.wrapper import PreparedWrapper

__version__ = "0.1.0"

_WHERE = {
    "Accelerator": "stratagem.accelerators.base",
    "Availability": "stratagem.plugin.component",
    "Callback": "stratagem_trainer.callbacks.base",
    "Capabilities": "stratagem.plugin.component",
    "Checkpoint": "stratagem.checkpoint.base",
    "CheckpointError": "stratagem.errors",
    "CheckpointReader": "stratagem.checkpoint.base",
    "CheckpointRequest": "stratagem.plugin.requests",
    "Checkpointer": "stratagem.checkpoint.base",
    "CheckpointerWrapper": "stratagem.checkpoint.wrapper",
    "Clipping": "stratagem.plugin.requests",
    "Collectives": "stratagem.collectives.base",
    "CollectivesWrapper": "stratagem.collectives.wrapper",
    "CombinationError": "stratagem.errors",
    "CombinedLoader": "stratagem_trainer.data.combined_loader",
    "Component": "stratagem.plugin.component",
    "ConfigError": "stratagem.errors",
    "DataModule": "stratagem_trainer.data.data_module",
    "DeferringStrategy": "stratagem.strategies.process_group",
    "DeviceError": "stratagem.errors",
    "EarlyStopping": "stratagem_trainer.callbacks.early_stopping",
    "Environment": "stratagem.environments.base",
    "LaunchPlan": "stratagem.launchers.base",
    "LaunchRequest": "stratagem.plugin.requests",
    "Launcher": "stratagem.launchers.base",
    "LauncherWrapper": "stratagem.launchers.wrapper",
    "LocalCollectives": "stratagem.collectives.local",
    "Logger": "stratagem_trainer.loggers.base",
    "LoopPlan": "stratagem.plugin.requests",
    "ModelCheckpoint": "stratagem_trainer.callbacks.model_checkpoint",
    "Module": "stratagem_trainer.module",
    "ModuleSteps": "stratagem.plugin.requests",
    "ParallelStrategy": "stratagem.strategies.base",
    "Precision": "stratagem.precision.base",
    "PrecisionError": "stratagem.errors",
    "PrecisionRequest": "stratagem.plugin.requests",
    "PrecisionWrapper": "stratagem.precision.wrapper",
    "Prepared": "stratagem.strategies.prepared",
    "PreparedWrapper": "stratagem.strategies.wrapper",
    "ProcessGroupCollectives": "stratagem.collectives.process_group",
    "ProcessGroupStrategy": "stratagem.strategies.process_group",
    "ReduceRequest": "stratagem.plugin.requests",
    "Replica": "stratagem.strategies.replica",
    "ReplicaError": "stratagem.errors",
    "Row": "stratagem_trainer.loggers.base",
    "RunConfig": "stratagem.config",
    "Runtime": "stratagem.runtime.runtime",
    "SetupRequest": "stratagem.plugin.requests",
    "ShardedSampler": "stratagem.data.sampler",
    "StratagemError": "stratagem.errors",
    "Strategy": "stratagem.strategies.base",
    "Task": "stratagem.launchers.base",
    "Trainer": "stratagem_trainer.trainer",
    "UsageError": "stratagem.errors",
    "WorkerError": "stratagem.errors",
    "deadline": "stratagem.collectives.deadline",
    "hookimpl": "stratagem.plugin.hookspecs",
    "options": "stratagem_cli.flags",
    "place": "stratagem.strategies.prepared",
    "rank_zero_only": "stratagem_trainer.rank_zero",
    "seed_everything": "stratagem_trainer.seeding",
}

__all__ = [
    "Accelerator",
    "Availability",
    "Callback",
    "Capabilities",
    "Checkpoint",
    "CheckpointError",
    "CheckpointReader",
    "CheckpointRequest",
    "Checkpointer",
    "CheckpointerWrapper",
    "Clipping",
    "Collectives",
    "CollectivesWrapper",
    "CombinationError",
    "CombinedLoader",
    "Component",
    "ConfigError",
    "DataModule",
    "DeferringStrategy",
    "DeviceError",
    "EarlyStopping",
    "Environment",
    "LaunchPlan",
    "LaunchRequest",
    "Launcher",
    "LauncherWrapper",
    "LocalCollectives",
    "Logger",
    "LoopPlan",
    "ModelCheckpoint",
    "Module",
    "ModuleSteps",
    "ParallelStrategy",
    "Precision",
    "PrecisionError",
    "PrecisionRequest",
    "PrecisionWrapper",
    "Prepared",
    "PreparedWrapper",
    "ProcessGroupCollectives",
    "ProcessGroupStrategy",
    "ReduceRequest",
    "Replica",
    "ReplicaError",
    "Row",
    "RunConfig",
    "Runtime",
    "SetupRequest",
    "ShardedSampler",
    "StratagemError",
    "Strategy",
    "Task",
    "Trainer",
    "UsageError",
    "WorkerError",
    "deadline",
    "hookimpl",
    "options",
    "place",
    "rank_zero_only",
    "seed_everything",
]


def import_from(module: str, name: str, what: str = "") -> Any:
    """Import `name` of a module here or in another distribution of ours; `what` is how an error calls it.

    Raises:
        ImportError: the distribution isn't installed; says which.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        distribution = package.replace("_", "-")
        raise ImportError(
            f"{what or name} is in {distribution}, which is not installed: pip install {distribution}"
        ) from None


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'stratagem' has no attribute {name!r}")
    value = import_from(_WHERE[name], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
