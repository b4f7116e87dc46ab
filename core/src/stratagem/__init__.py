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
    from stratagem_trainer.loggers.base import Logger, Row
    from stratagem_trainer.module import Module
    from stratagem_trainer.trainer import Trainer

    from stratagem.accelerator import Accelerator
    from stratagem.checkpoint.base import Checkpoint, Checkpointer, CheckpointReader
    from stratagem.collectives.base import Collectives
    from stratagem.collectives.deadline import deadline
    from stratagem.collectives.local import LocalCollectives
    from stratagem.collectives.process_group import ProcessGroupCollectives
    from stratagem.collectives.wrapper import CollectivesWrapper
    from stratagem.component import Availability, Capabilities, Component
    from stratagem.config import RunConfig
    from stratagem.data.sampler import ShardedSampler
    from stratagem.environment.base import Environment
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
    from stratagem.group_strategy import DeferringStrategy, ProcessGroupStrategy
    from stratagem.hookspecs import hookimpl
    from stratagem.launch.base import Launcher, LaunchPlan, Task
    from stratagem.precision.base import Precision
    from stratagem.prepared import Prepared, Replica, place
    from stratagem.requests import (
        CheckpointRequest,
        Clipping,
        LaunchRequest,
        PrecisionRequest,
        ReduceRequest,
        SetupRequest,
    )
    from stratagem.runtime import Runtime
    from stratagem.strategy import ParallelStrategy, Strategy

__version__ = "0.1.0"

_WHERE = {
    "Accelerator": "stratagem.accelerator",
    "Availability": "stratagem.component",
    "Callback": "stratagem_trainer.callbacks.base",
    "Capabilities": "stratagem.component",
    "Checkpoint": "stratagem.checkpoint.base",
    "CheckpointError": "stratagem.errors",
    "CheckpointReader": "stratagem.checkpoint.base",
    "CheckpointRequest": "stratagem.requests",
    "Checkpointer": "stratagem.checkpoint.base",
    "Clipping": "stratagem.requests",
    "Collectives": "stratagem.collectives.base",
    "CollectivesWrapper": "stratagem.collectives.wrapper",
    "CombinationError": "stratagem.errors",
    "Component": "stratagem.component",
    "ConfigError": "stratagem.errors",
    "DeferringStrategy": "stratagem.group_strategy",
    "DeviceError": "stratagem.errors",
    "EarlyStopping": "stratagem_trainer.callbacks.early_stopping",
    "Environment": "stratagem.environment.base",
    "LaunchPlan": "stratagem.launch.base",
    "LaunchRequest": "stratagem.requests",
    "Launcher": "stratagem.launch.base",
    "LocalCollectives": "stratagem.collectives.local",
    "Logger": "stratagem_trainer.loggers.base",
    "ModelCheckpoint": "stratagem_trainer.callbacks.model_checkpoint",
    "Module": "stratagem_trainer.module",
    "ParallelStrategy": "stratagem.strategy",
    "Precision": "stratagem.precision.base",
    "PrecisionError": "stratagem.errors",
    "PrecisionRequest": "stratagem.requests",
    "Prepared": "stratagem.prepared",
    "ProcessGroupCollectives": "stratagem.collectives.process_group",
    "ProcessGroupStrategy": "stratagem.group_strategy",
    "ReduceRequest": "stratagem.requests",
    "Replica": "stratagem.prepared",
    "ReplicaError": "stratagem.errors",
    "Row": "stratagem_trainer.loggers.base",
    "RunConfig": "stratagem.config",
    "Runtime": "stratagem.runtime",
    "SetupRequest": "stratagem.requests",
    "ShardedSampler": "stratagem.data.sampler",
    "Strategy": "stratagem.strategy",
    "StratagemError": "stratagem.errors",
    "Task": "stratagem.launch.base",
    "Trainer": "stratagem_trainer.trainer",
    "UsageError": "stratagem.errors",
    "WorkerError": "stratagem.errors",
    "deadline": "stratagem.collectives.deadline",
    "hookimpl": "stratagem.hookspecs",
    "options": "stratagem_cli.flags",
    "place": "stratagem.prepared",
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
    "Clipping",
    "Collectives",
    "CollectivesWrapper",
    "CombinationError",
    "Component",
    "ConfigError",
    "DeferringStrategy",
    "DeviceError",
    "EarlyStopping",
    "Environment",
    "LaunchPlan",
    "LaunchRequest",
    "Launcher",
    "LocalCollectives",
    "Logger",
    "ModelCheckpoint",
    "Module",
    "ParallelStrategy",
    "Precision",
    "PrecisionError",
    "PrecisionRequest",
    "Prepared",
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
]


def import_from(module: str, name: str) -> Any:
    """Import `name` of a module here or in another distribution of ours.

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
            f"{name} is in {distribution}, which is not installed: pip install {distribution}"
        ) from None


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'stratagem' has no attribute {name!r}")
    value = import_from(_WHERE[name], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
