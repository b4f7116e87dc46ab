"""What each hook is asked: one frozen record per hook."""

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
    """This process's place among all, and where the ranks meet."""
    devices: tuple[torch.device, ...]
    """The devices of this process, the first already the current one; several only for a strategy that has
    "several_devices"."""
    accelerator: Accelerator
    """The kind of those devices; its `backend` suits it."""

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
    """The kind of that device; it has been asked whether it can do this precision."""


def _is_at_least_0(value: Any) -> bool:
    """Whether a value is such a number; tensors of one element and numbers of NumPy are, too."""
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
    """What a loop is going to do with a module, for engines that must know it beforehand."""

    training: bool = True
    """False for validate, test and predict: there are no optimizers and no backward."""
    manual: bool = False
    """The module calls backward and step itself, as often as it likes."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    clipping: Clipping = Clipping()
    """The clipping that `Prepared.clip` will get."""
    micro_batch_size: int | None = None
    """Samples per micro-batch and rank; None where the loader has no batch size."""


@dataclass(frozen=True)
class ModuleSteps:
    """The steps of a user's module, for a strategy that splits a micro-batch into chunks, or has to see one."""

    chunk_module: nn.Module
    """Called with the name of a step, a chunk and the index of its micro-batch: one step, and nothing after it."""
    step_end_fns: Mapping[str, Callable[[list[Any]], Any]] = field(default_factory=dict)
    """Name of a step → the user's function that combines the outputs of its chunks, if the module has one."""
    make_sample: Callable[[], Any] | None = None
    """Makes a batch like the first, on the CPU, and moves no loader on; None where that is not available."""
    sample_step: str = "training_step"
    """Which step is called with batches like the sample; in a training others are, too, in evaluations."""


@dataclass(frozen=True)
class SetupRequest:
    """For the hook `setup`.

    A strategy may replace parameters before it calls `make_optimizers`; it calls that exactly once
    when `loop.training`, and never otherwise.
    """

    module: nn.Module
    """What is called per step; contains `original_module`, or is it. On the CPU, or on "meta"."""
    original_module: nn.Module
    """The user's module: its parameter names are the keys of every checkpoint."""
    make_optimizers: Callable[[], Sequence[Optimizer]]
    """Makes the user's optimizers over the parameters as they are when it is called."""
    devices: tuple[torch.device, ...]
    """The devices of this process; several only for a strategy that has "several_devices"."""
    collectives: Collectives
    """What the `reduce` hook answered with."""
    precision: Precision
    """What the `precision` hook answered with."""
    loop: LoopPlan = LoopPlan()
    """What the loop is going to do."""
    steps: ModuleSteps | None = None
    """The module's steps, where a trainer calls them; None in your own training loop."""
    config: RunConfig = field(default_factory=RunConfig)
    """The run's. Its `run_dir` is the folder that all ranks write to, and None where the run keeps no files."""
    left_shards: object | None = None
    """`Prepared.left_shards` of the previous run in this process, if it left the module sharded."""

    @property
    def device(self) -> torch.device:
        """Where the module is to be, and where batches go: the first of `devices`."""
        return self.devices[0]


@dataclass(frozen=True)
class CheckpointRequest:
    """For the hook `checkpoint`."""

    create: Callable[[Collectives], Any]
    """The selected checkpoint component: `create(collectives)`."""
    collectives: Collectives
    """What the `reduce` hook answered with."""
