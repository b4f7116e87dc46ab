"""What each hook is asked: one frozen record per hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from stratagem.accelerators.base import Accelerator
    from stratagem.collectives.base import Collectives
    from stratagem.environments.base import Environment
    from stratagem.launchers.base import LaunchPlan
    from stratagem.precision.base import Precision


@dataclass(frozen=True)
class LaunchRequest:
    """For the hook `launch`."""

    plan: LaunchPlan
    """How many processes, on how many nodes, and how to start them."""
    environment: Environment
    """The environment of the launching process."""


@dataclass(frozen=True)
class ReduceRequest:
    """For the hook `reduce`."""

    environment: Environment
    """This process's place among all, and where the ranks meet."""
    device: torch.device
    """This process's device, already the current one."""
    accelerator: Accelerator
    """The kind of that device; its `backend` suits it."""
    devices: tuple[torch.device, ...] = ()
    """All devices of this process, `device` first; several only for a strategy that has "several_devices"."""


@dataclass(frozen=True)
class PrecisionRequest:
    """For the hook `precision`."""

    name: str
    """As "bf16-mixed"."""
    create: Callable[[str, torch.device], Precision]
    """The selected precision component: `create(name, device)`."""
    device: torch.device
    """This process's device."""
    accelerator: Accelerator
    """The kind of that device; it has been asked whether it can do this precision."""


@dataclass(frozen=True)
class Clipping:
    """How gradients are limited before each optimizer step."""

    max_norm: float | None = None
    """Total norm over all parameters of an optimizer."""
    max_value: float | None = None
    """Largest absolute value of an element."""
    norm_type: float = 2.0
    """Which norm `max_norm` limits: 2.0 is the Euclidean one."""


@dataclass(frozen=True)
class SetupRequest:
    """For the hook `setup`.

    A strategy may replace parameters before it calls `make_optimizers`; it calls that exactly once
    when `training`, and never otherwise.
    """

    module: nn.Module
    """What is called per step; contains `plain`, or is it. On the CPU, or on "meta"."""
    plain: nn.Module
    """The user's module: its parameter names are the keys of every checkpoint."""
    make_optimizers: Callable[[], Sequence[Optimizer]]
    """Makes the user's optimizers over the parameters as they are when it is called."""
    device: torch.device
    """Where the module is to be, and where batches go."""
    collectives: Collectives
    """What the `reduce` hook answered with."""
    precision: Precision
    """What the `precision` hook answered with."""
    training: bool = True
    """False for validate, test and predict: there are no optimizers and no backward."""
    manual: bool = False
    """The module calls backward and step itself, as often as it likes."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    clipping: Clipping = Clipping()
    """What the loop is going to pass to `Prepared.clip`, for engines that must know it beforehand."""
    micro_batch_size: int | None = None
    """Samples per micro-batch and rank, where the loader tells."""
    devices: tuple[torch.device, ...] = ()
    """All devices of this process, `device` first; several only for a strategy that has "several_devices"."""
    run_dir: str | None = None
    """Where this run's files go, as an engine's log; None where it keeps none."""
    log_level: str | None = None
    """From which level on an engine's records reach the terminal, as "info"; None for its default."""
    part: nn.Module | None = None
    """What to call instead of `module` for each part of a micro-batch that the strategy splits; `module` if None."""
    ends: Mapping[str, Callable[[list[Any]], Any]] = field(default_factory=dict)
    """By the name of a step: what makes the outputs of its parts one, where the user's module says it."""
    sample: Callable[[], Any] | None = None
    """Makes a batch like the first, on the CPU, and moves no loader on; None where that is not available."""
    step: str = "training_step"
    """Which step is called with batches like `sample`'s; in a training others are, too, in evaluations."""
    left_shards: Any = None
    """Of a module that the run before left sharded in this process: its `Prepared.left_shards`."""


@dataclass(frozen=True)
class CheckpointRequest:
    """For the hook `checkpoint`."""

    create: Callable[[Collectives], Any]
    """The selected checkpoint component: `create(collectives)`."""
    collectives: Collectives
    """What the `reduce` hook answered with."""
