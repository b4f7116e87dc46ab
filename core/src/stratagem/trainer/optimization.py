"""What `configure_optimizers` may return, read into optimizers and schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem.module import Module


@dataclass(frozen=True)
class Schedule:
    """A scheduler and when to step it."""

    scheduler: Any
    interval: str = "epoch"
    """"step" or "epoch"."""
    frequency: int = 1
    monitor: str | None = None
    """The metric that its `step` takes, as ReduceLROnPlateau's does."""

    def is_due(self, interval: str, count: int) -> bool:
        """Whether it steps after `count` steps or epochs."""
        return self.interval == interval and count % self.frequency == 0

    def step(self, metrics: Mapping[str, float]) -> None:
        """Step the scheduler.

        Raises:
            ConfigError: its metric wasn't logged.
        """
        if not takes_metric(self.scheduler):
            self.scheduler.step()
            return
        if self.monitor is None or self.monitor not in metrics:
            raise ConfigError(
                f"{type(self.scheduler).__name__} needs a metric, and monitor={self.monitor!r} was not logged: "
                f"logged are {sorted(metrics)}"
            )
        self.scheduler.step(metrics[self.monitor])


def read_optimizers(module: Module) -> tuple[list[Optimizer], list[Schedule]]:
    """Call `configure_optimizers` and sort what it returns.

    Raises:
        ConfigError: it returned something else than an optimizer, several, a dict, or
            ([optimizers], [schedulers]).
    """
    returned = module.configure_optimizers()
    optimizers: list[Optimizer] = []
    schedules: list[Schedule] = []
    for entry in _entries(returned):
        optimizer = entry["optimizer"] if isinstance(entry, Mapping) and "optimizer" in entry else entry
        if not isinstance(optimizer, Optimizer):
            _refuse(module, returned)
        optimizers.append(optimizer)
        if isinstance(entry, Mapping) and entry.get("lr_scheduler") is not None:
            schedules.append(_schedule(entry["lr_scheduler"]))
    if _is_pair(returned):
        schedules += [_schedule(scheduler) for scheduler in returned[1]]
    if not optimizers:
        _refuse(module, returned)
    return optimizers, schedules


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether its `step` can't do without a closure, as LBFGS's."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def takes_metric(scheduler: Any) -> bool:
    """Whether its `step` takes a metric, as ReduceLROnPlateau's."""
    return "metrics" in signature(type(scheduler).step).parameters


def _entries(returned: Any) -> Sequence[Any]:
    if _is_pair(returned):
        return list(returned[0])
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def _is_pair(returned: Any) -> bool:
    return (
        isinstance(returned, (list, tuple))
        and len(returned) == 2
        and all(isinstance(part, (list, tuple)) for part in returned)
    )


def _schedule(scheduler: Any) -> Schedule:
    if not isinstance(scheduler, Mapping):
        return Schedule(scheduler)
    known = {"scheduler", "interval", "frequency", "monitor"}
    unknown = sorted(set(scheduler) - known)
    if unknown or "scheduler" not in scheduler:
        raise ConfigError(f"an lr_scheduler has {sorted(scheduler)}; allowed are {sorted(known)}")
    schedule = Schedule(**scheduler)
    if schedule.interval not in ("step", "epoch"):
        raise ConfigError(
            f"an lr_scheduler has interval={schedule.interval!r}; allowed are 'step' and 'epoch'"
        )
    return schedule


def _refuse(module: Module, returned: Any) -> None:
    raise ConfigError(
        f"{type(module).__qualname__}.configure_optimizers returned {type(returned).__name__}: return an "
        "optimizer, a list of them, a dict with 'optimizer' and 'lr_scheduler', or ([optimizers], [schedulers])"
    )
