"""Stratagem: train the same PyTorch model under any strategy, chosen by one flag.

Names are imported when they are first used, so that `import stratagem` alone loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem.accelerator import Accelerator
    from stratagem.callbacks.base import Callback
    from stratagem.callbacks.early_stopping import EarlyStopping
    from stratagem.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem.checkpoint.base import Checkpoint, Checkpointer, CheckpointReader
    from stratagem.cli.flags import options
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
    from stratagem.loggers.base import Logger, Row
    from stratagem.module import Module
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
    from stratagem.trainer.trainer import Trainer

__version__ = "0.1.0"

_WHERE = {
    "Accelerator": "accelerator",
    "Availability": "component",
    "Callback": "callbacks.base",
    "Capabilities": "component",
    "Checkpoint": "checkpoint.base",
    "CheckpointError": "errors",
    "CheckpointReader": "checkpoint.base",
    "CheckpointRequest": "requests",
    "Checkpointer": "checkpoint.base",
    "Clipping": "requests",
    "Collectives": "collectives.base",
    "CollectivesWrapper": "collectives.wrapper",
    "CombinationError": "errors",
    "Component": "component",
    "ConfigError": "errors",
    "DeferringStrategy": "group_strategy",
    "DeviceError": "errors",
    "EarlyStopping": "callbacks.early_stopping",
    "Environment": "environment.base",
    "LaunchPlan": "launch.base",
    "LaunchRequest": "requests",
    "Launcher": "launch.base",
    "LocalCollectives": "collectives.local",
    "Logger": "loggers.base",
    "ModelCheckpoint": "callbacks.model_checkpoint",
    "Module": "module",
    "ParallelStrategy": "strategy",
    "Precision": "precision.base",
    "PrecisionError": "errors",
    "PrecisionRequest": "requests",
    "Prepared": "prepared",
    "ProcessGroupCollectives": "collectives.process_group",
    "ProcessGroupStrategy": "group_strategy",
    "ReduceRequest": "requests",
    "Replica": "prepared",
    "ReplicaError": "errors",
    "Row": "loggers.base",
    "RunConfig": "config",
    "Runtime": "runtime",
    "SetupRequest": "requests",
    "ShardedSampler": "data.sampler",
    "Strategy": "strategy",
    "StratagemError": "errors",
    "Task": "launch.base",
    "Trainer": "trainer.trainer",
    "UsageError": "errors",
    "WorkerError": "errors",
    "deadline": "collectives.deadline",
    "hookimpl": "hookspecs",
    "options": "cli.flags",
    "place": "prepared",
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


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'stratagem' has no attribute {name!r}")
    value = getattr(import_module(f"stratagem.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
