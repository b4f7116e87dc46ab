"""Convert the result of `configure_optimizers` into optimizers and schedulers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from stratagem.errors import ConfigError
from stratagem_trainer.module.hooks import ModuleHooks
from stratagem_trainer.stage.hooks import overrides

if TYPE_CHECKING:
    from stratagem_trainer.settings import TrainerSettings


@dataclass(frozen=True)
class Schedule:
    """A scheduler and when to step it."""

    scheduler: Any
    optimizer: int
    """Index of the optimizer whose learning rates it sets."""
    interval: str = "epoch"
    """"step" or "epoch"."""
    frequency: int = 1
    monitor: str | None = None
    """Name of the metric that its `step` takes, as ReduceLROnPlateau's does."""
    strict: bool = True
    """Whether a metric that wasn't logged is an error. If False, it is a warning, and the step is skipped."""
    reduce_on_plateau: bool = False
    """Whether its `step` takes the metric, even if that can't be seen from the scheduler."""
    name: str | None = None
    """The name under which `LearningRateMonitor` logs its learning rates."""
    hook: Callable[[Any, Any], None] | None = None
    """The module's own `lr_scheduler_step`."""

    @cached_property
    def takes_metric(self) -> bool:
        """Whether its `step` takes a metric, as ReduceLROnPlateau's."""
        return self.reduce_on_plateau or takes_metric(self.scheduler)

    def is_due(self, interval: str, count: int) -> bool:
        """Whether it steps after `count` steps or epochs."""
        return self.interval == interval and count % self.frequency == 0

    def step(self, metrics: Mapping[str, float]) -> None:
        """Step the scheduler.

        Raises:
            ConfigError: its metric wasn't logged.
        """
        metric = None
        if self.takes_metric:
            if self.monitor not in metrics and not self.strict:
                warnings.warn(f"{self._missing(metrics)}; with strict=False it isn't stepped", stacklevel=2)
                return
            if self.monitor is None or self.monitor not in metrics:
                raise ConfigError(self._missing(metrics))
            metric = metrics[self.monitor]
        if self.hook is not None:
            self.hook(self.scheduler, metric)
        elif metric is None:
            self.scheduler.step()
        else:
            self.scheduler.step(metric)

    def _missing(self, metrics: Mapping[str, float]) -> str:
        return (
            f"{type(self.scheduler).__name__} needs a metric, and monitor={self.monitor!r} was not logged: logged "
            f"are {sorted(metrics)}"
        )


class NoOptimizer(Optimizer):
    """An optimizer that changes nothing, for a fit without optimizers."""

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # returns nothing, without overloads
        """Do nothing."""


def read_optimizers(
    module: Any, settings: TrainerSettings | None = None, configure: Callable[[], Any] | None = None
) -> tuple[list[Optimizer], list[Schedule]]:
    """Call `configure_optimizers`, and return its optimizers and schedulers.

    Args:
        module: the user's `Module`.
        settings: the trainer's settings; a scheduler must be due at least once within their limits.
        configure: called instead of the module's `configure_optimizers`.

    Raises:
        ConfigError: the result isn't an optimizer, several, a dict, or ([optimizers], [schedulers]). Or a scheduler
            would never be stepped, sets the learning rates of an optimizer that isn't returned, or lacks the name of
            its metric.
    """
    returned = (configure or module.configure_optimizers)()
    if returned is None:
        warnings.warn(
            f"{type(module).__qualname__}.configure_optimizers returned None: the fit changes no parameter; return "
            "the optimizer, if there is to be one",
            stacklevel=2,
        )
        returned = NoOptimizer(list(module.parameters()), {})
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
    hook = module.lr_scheduler_step if overrides(module, "lr_scheduler_step", ModuleHooks) else None
    schedules = [_schedule(scheduler, monitor, optimizers, hook) for scheduler, monitor in found]
    if module.automatic_optimization:
        for schedule in schedules:
            _refuse_other_arguments(schedule)
    if settings is not None:
        for schedule in schedules:
            _refuse_if_never_due(schedule, settings)
    return optimizers, schedules


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether the optimizer's `step` requires a closure, as LBFGS's does."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def takes_metric(scheduler: Any) -> bool:
    """Whether its `step` takes a metric, as ReduceLROnPlateau's."""
    return "metrics" in signature(type(scheduler).step).parameters


_OPTIMIZER_KEYS = ("lr_scheduler", "monitor", "optimizer")
_SCHEDULER_KEYS = ("frequency", "interval", "monitor", "name", "reduce_on_plateau", "scheduler", "strict")


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


def _schedule(
    given: Any,
    outer_monitor: str | None,
    optimizers: Sequence[Optimizer],
    hook: Callable[[Any, Any], None] | None,
) -> Schedule:
    settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    _refuse_unknown_keys("an lr_scheduler", settings, _SCHEDULER_KEYS)
    if "scheduler" not in settings:
        raise ConfigError(f"an lr_scheduler has {sorted(settings)} and no 'scheduler'")
    if outer_monitor is not None and settings.setdefault("monitor", outer_monitor) != outer_monitor:
        raise ConfigError(
            f"configure_optimizers names monitor={outer_monitor!r} beside 'lr_scheduler' and "
            f"monitor={settings['monitor']!r} within it: name one"
        )
    schedule = Schedule(**settings, optimizer=_index_of(settings["scheduler"], optimizers), hook=hook)
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


def _refuse_other_arguments(schedule: Schedule) -> None:
    kind = type(schedule.scheduler)
    taken = signature(kind.step)
    try:
        taken.bind(schedule.scheduler, *([None] if schedule.takes_metric else []))
    except TypeError:
        if schedule.hook is None:
            raise ConfigError(
                f"{kind.__name__}.step takes {taken}, and is called without arguments: define "
                "lr_scheduler_step(self, scheduler, metric), which calls it with what it takes"
            ) from None


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
