"""The arguments of hooks: one frozen record per hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from stratagem.config import RunConfig
from stratagem.errors import ConfigError, short

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from stratagem.accelerators.base import Accelerator
    from stratagem.collectives.base import Collectives
    from stratagem.environments.base import Environment
    from stratagem.launchers.base import Launcher, LaunchPlan
    from stratagem.precision.base import Precision


@dataclass(frozen=True)
class LaunchRequest:
    """For the hook `launch`."""

    plan: LaunchPlan
    """How many processes, on how many nodes, and how to start them."""
    environment: Environment
    """The environment of the launching process."""
    create: Callable[[LaunchPlan], Launcher]
    """The installed launcher: `create(plan)`."""


@dataclass(frozen=True)
class ReduceRequest:
    """For the hook `reduce`."""

    environment: Environment
    """This process's rank, and the address of the ranks' store."""
    devices: tuple[torch.device, ...]
    """The devices of this process, the first already the current one; several only for a strategy that has
    "several_devices"."""
    accelerator: Accelerator
    """The accelerator of those devices. Its `backend` is the process group's default."""

    @property
    def device(self) -> torch.device:
        """The first of `devices`."""
        return self.devices[0]


@dataclass(frozen=True)
class PrecisionRequest:
    """For the hook `precision`."""

    name: str
    """The precision's name, such as "bf16-mixed"."""
    create: Callable[[str, torch.device], Precision]
    """The selected precision component: `create(name, device)`."""
    device: torch.device
    """This process's device."""
    accelerator: Accelerator
    """The accelerator of that device. It supports this precision: that was checked before."""


def _is_at_least_0(value: Any) -> bool:
    """Whether a value is a number of at least 0. Tensors of one element and NumPy's numbers count, too."""
    if isinstance(value, (str, bytes, bool)):
        return False
    try:
        return float(value) >= 0
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


@dataclass(frozen=True)
class Clipping:
    """How gradients are limited before each optimizer step."""

    max_norm: float | None = None
    """Total norm over all parameters of an optimizer."""
    max_value: float | None = None
    """Largest absolute value of an element."""
    norm_type: float = 2.0
    """Which norm `max_norm` limits: 2.0 is the Euclidean one."""

    def __post_init__(self) -> None:
        for name, value in (("max_norm", self.max_norm), ("max_value", self.max_value)):
            if value is not None and not _is_at_least_0(value):
                raise ConfigError(
                    f"{name}={short(value)} must be a number of at least 0, or None to limit nothing"
                )
        if not _is_at_least_0(self.norm_type):
            raise ConfigError(f"norm_type={short(self.norm_type)} must be a number, as 2.0 or float('inf')")


@dataclass(frozen=True)
class LoopPlan:
    """What a loop will do with a module, for engines that must know it beforehand."""

    training: bool = True
    """False for validate, test and predict: there are no optimizers and no backward."""
    manual: bool = False
    """Whether the module calls backward and step itself, as often as it likes."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    clipping: Clipping = Clipping()
    """The clipping that `Prepared.clip` will get."""
    micro_batch_size: int | None = None
    """Samples per micro-batch and rank; None if the loader has no batch size."""


@dataclass(frozen=True)
class ModuleSteps:
    """The steps of a user's module, for a strategy that splits a micro-batch into chunks, or needs a sample."""

    chunk_module: nn.Module
    """Call it with the name of a step, a chunk, and the index of the micro-batch. It runs that step of the module
    only, without the user's function in `step_end_fns`."""
    step_end_fns: Mapping[str, Callable[[list[Any]], Any]] = field(default_factory=dict)
    """Name of a step → the user's function that combines the outputs of its chunks, if the module has one."""
    make_sample: Callable[[], Any] | None = None
    """Makes a batch like the first one, on the CPU, without advancing a loader; None if that is not available."""
    sample_step: str = "training_step"
    """The step whose batches are like the sample. During training, evaluations call other steps, too."""


@dataclass(frozen=True)
class SetupRequest:
    """For the hook `setup`.

    A strategy may replace parameters before it calls `make_optimizers`. It must call that function exactly once if
    `loop.training`, and otherwise never.
    """

    module: nn.Module
    """The module to call per step. It contains `original_module`, or is the same. On the CPU, or on "meta"."""
    original_module: nn.Module
    """The user's module: its parameter names are the keys of every checkpoint."""
    make_optimizers: Callable[[], Sequence[Optimizer]]
    """Makes the user's optimizers over the module's parameters at the time of the call."""
    devices: tuple[torch.device, ...]
    """The devices of this process; several only for a strategy that has "several_devices"."""
    collectives: Collectives
    """The result of the `reduce` hook."""
    precision: Precision
    """The result of the `precision` hook."""
    loop: LoopPlan = LoopPlan()
    """What the loop will do."""
    steps: ModuleSteps | None = None
    """The module's steps, if a trainer calls them; None in your own training loop."""
    config: RunConfig = field(default_factory=RunConfig)
    """The run's configuration. Its `run_dir` is the folder for all ranks' files, or None if it keeps no files."""
    left_shards: object | None = None
    """`Prepared.left_shards` of the previous run in this process, if it left the module sharded."""

    @property
    def device(self) -> torch.device:
        """The device for the module and for batches: the first of `devices`."""
        return self.devices[0]


@dataclass(frozen=True)
class CheckpointRequest:
    """For the hook `checkpoint`."""

    create: Callable[[Collectives], Any]
    """The selected checkpoint component: `create(collectives)`."""
    collectives: Collectives
    """The result of the `reduce` hook."""
