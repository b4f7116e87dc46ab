"""What `configure_optimizers` may return, read into optimizers and schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem_trainer.settings import TrainerSettings


@dataclass(frozen=True)
class Schedule:
    """A scheduler and when to step it."""

    scheduler: Any
    interval: str = "epoch"
    """"step" or "epoch"."""
    frequency: int = 1
    monitor: str | None = None
    """The metric that its `step` takes, as ReduceLROnPlateau's does."""
    optimizer: int = 0
    """Which optimizer's rates it sets."""

    @property
    def takes_metric(self) -> bool:
        """Whether its `step` takes a metric, as ReduceLROnPlateau's."""
        return takes_metric(self.scheduler)

    def is_due(self, interval: str, count: int) -> bool:
        """Whether it steps after `count` steps or epochs."""
        return self.interval == interval and count % self.frequency == 0

    def step(self, metrics: Mapping[str, float]) -> None:
        """Step the scheduler.

        Raises:
            ConfigError: its metric wasn't logged.
        """
        if not self.takes_metric:
            self.scheduler.step()
            return
        if self.monitor is None or self.monitor not in metrics:
            raise ConfigError(
                f"{type(self.scheduler).__name__} needs a metric, and monitor={self.monitor!r} was not logged: "
                f"logged are {sorted(metrics)}"
            )
        self.scheduler.step(metrics[self.monitor])


def read_optimizers(
    module: Any, settings: TrainerSettings | None = None
) -> tuple[list[Optimizer], list[Schedule]]:
    """Call `configure_optimizers` and sort what it returns.

    Args:
        module: the user's `Module`.
        settings: whose limits a scheduler must be able to be stepped within.

    Raises:
        ConfigError: it returned something else than an optimizer, several, a dict, or
            ([optimizers], [schedulers]); or a scheduler that would never be stepped, or sets the rates of
            an optimizer that isn't returned, or lacks its metric's name.
    """
    returned = module.configure_optimizers()
    optimizers: list[Optimizer] = []
    found: list[tuple[Any, Any]] = []
    for entry in _entries(returned):
        optimizer = entry["optimizer"] if isinstance(entry, Mapping) and "optimizer" in entry else entry
        if not isinstance(optimizer, Optimizer):
            _refuse(module, returned)
        optimizers.append(optimizer)
        if isinstance(entry, Mapping):
            _refuse_unknown_keys("configure_optimizers returned a dict", entry, _OPTIMIZER_KEYS)
            if entry.get("lr_scheduler") is not None:
                found.append((entry["lr_scheduler"], entry.get("monitor")))
            elif entry.get("monitor") is not None:
                raise ConfigError(
                    f"configure_optimizers returned a dict with monitor={entry['monitor']!r} and no 'lr_scheduler', "
                    "whose metric it would be: add it, or leave 'monitor' out"
                )
    if _is_pair(returned):
        found += [(scheduler, None) for scheduler in returned[1]]
    if not optimizers:
        _refuse(module, returned)
    schedules = [_schedule(scheduler, monitor, optimizers) for scheduler, monitor in found]
    if settings is not None:
        for schedule in schedules:
            _refuse_if_never_due(schedule, settings)
    return optimizers, schedules


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether its `step` can't do without a closure, as LBFGS's."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def takes_metric(scheduler: Any) -> bool:
    """Whether its `step` takes a metric, as ReduceLROnPlateau's."""
    return "metrics" in signature(type(scheduler).step).parameters


_OPTIMIZER_KEYS = ("lr_scheduler", "monitor", "optimizer")
_SCHEDULER_KEYS = ("frequency", "interval", "monitor", "scheduler")


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


def _schedule(given: Any, outer_monitor: str | None, optimizers: Sequence[Optimizer]) -> Schedule:
    settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    _refuse_unknown_keys("an lr_scheduler", settings, _SCHEDULER_KEYS)
    if "scheduler" not in settings:
        raise ConfigError(f"an lr_scheduler has {sorted(settings)} and no 'scheduler'")
    if outer_monitor is not None and settings.setdefault("monitor", outer_monitor) != outer_monitor:
        raise ConfigError(
            f"configure_optimizers names monitor={outer_monitor!r} beside 'lr_scheduler' and "
            f"monitor={settings['monitor']!r} within it: name one"
        )
    schedule = Schedule(**settings, optimizer=_index_of(settings["scheduler"], optimizers))
    name = type(schedule.scheduler).__name__
    if schedule.interval not in ("step", "epoch"):
        raise ConfigError(
            f"an lr_scheduler has interval={schedule.interval!r}; allowed are 'step' and 'epoch'"
        )
    frequency = schedule.frequency
    if not isinstance(frequency, int) or isinstance(frequency, bool) or frequency < 1:
        raise ConfigError(f"an lr_scheduler has frequency={frequency!r}; give a whole number of at least 1")
    if schedule.takes_metric and schedule.monitor is None:
        raise ConfigError(
            f"{name} needs a metric: return {{'scheduler': …, 'monitor': 'val_loss'}}, with the name of one that is "
            "logged"
        )
    return schedule


def _index_of(scheduler: Any, optimizers: Sequence[Optimizer]) -> int:
    if isinstance(scheduler, Optimizer) or not callable(getattr(scheduler, "step", None)):
        raise ConfigError(
            f"configure_optimizers returned a {type(scheduler).__name__} where a learning rate scheduler belongs"
        )
    own = getattr(scheduler, "optimizer", None)
    if not isinstance(own, Optimizer):
        return 0
    for index, optimizer in enumerate(optimizers):
        if optimizer is own:
            return index
    raise ConfigError(
        f"{type(scheduler).__name__} sets the rates of a {type(own).__name__} that configure_optimizers doesn't "
        "return: make it of the optimizer that is returned"
    )


def _refuse_if_never_due(schedule: Schedule, settings: TrainerSettings) -> None:
    name = "max_epochs" if schedule.interval == "epoch" else "max_steps"
    limit = settings.epochs if schedule.interval == "epoch" else settings.steps
    if limit is not None and 0 < limit < schedule.frequency:
        raise ConfigError(
            f"{type(schedule.scheduler).__name__} has interval={schedule.interval!r} and "
            f"frequency={schedule.frequency}, and would never be stepped with {name}={limit}: lower its frequency"
        )


def _refuse_unknown_keys(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = sorted(map(str, set(given) - set(known)))
    if unknown:
        raise ConfigError(f"{what} has {unknown[0]!r}; allowed are {', '.join(known)}")


def _refuse(module: Any, returned: Any) -> None:
    raise ConfigError(
        f"{type(module).__qualname__}.configure_optimizers returned {type(returned).__name__}: return an "
        "optimizer, a list of them, a dict with 'optimizer' and 'lr_scheduler', or ([optimizers], [schedulers])"
    )
