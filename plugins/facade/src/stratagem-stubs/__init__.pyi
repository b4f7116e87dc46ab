"""All names of `stratagem`, for type checkers and editors. Written by `make facade`: edit pyproject.toml instead."""

from stratagem.accelerators.base import Accelerator as Accelerator
from stratagem.checkpoint.base import Checkpoint as Checkpoint
from stratagem.checkpoint.base import CheckpointReader as CheckpointReader
from stratagem.checkpoint.base import Checkpointer as Checkpointer
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
from stratagem.launchers.base import LaunchPlan as LaunchPlan
from stratagem.launchers.base import Launcher as Launcher
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
from stratagem_callbacks import TrainingCurve as TrainingCurve
from stratagem_checkpoint import InitialWeights as InitialWeights
from stratagem_checkpoint import WeightsReport as WeightsReport
from stratagem_cli import options as options
from stratagem_launch import shared as shared
from stratagem_sharding.deferring import DeferringStrategy as DeferringStrategy
from stratagem_trainer import CombinedLoader as CombinedLoader
from stratagem_trainer import DataModule as DataModule
from stratagem_trainer import Module as Module
from stratagem_trainer import Trainer as Trainer
from stratagem_trainer import rank_zero_only as rank_zero_only
from stratagem_trainer import seed_everything as seed_everything
from stratagem_trainer.callbacks import Callback as Callback
from stratagem_trainer.callbacks import EarlyStopping as EarlyStopping
from stratagem_trainer.callbacks import ModelCheckpoint as ModelCheckpoint
from stratagem_trainer.loggers import Logger as Logger
from stratagem_trainer.loggers import Row as Row

__version__: str

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
    "InitialWeights",
    "LaunchPlan",
    "LaunchRequest",
    "Launcher",
    "LauncherWrapper",
    "LocalCollectives",
    "Logger",
    "LoopPlan",
    "LossSum",
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
    "TrainingCurve",
    "UsageError",
    "WeightsReport",
    "WorkerError",
    "deadline",
    "hookimpl",
    "options",
    "place",
    "rank_zero_only",
    "seed_everything",
    "shared",
]
