"""What `configure_optimizers` may return, and when a scheduler is stepped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small import Line
from stratagem_trainer.loops.optimizers import Schedule, needs_closure, read_optimizers, takes_metric
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from stratagem.errors import ConfigError


def read(returned: Any, module: Any = None, epochs: int | None = None, steps: int | None = None) -> Any:
    settings = SimpleNamespace(epochs=epochs, steps=steps)
    return read_optimizers(module or Line(), settings, lambda: returned)  # type: ignore[arg-type]  # its limits


def sgd() -> SGD:
    return SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


FIRST, SECOND = sgd(), sgd()
ONE, TWO = ExponentialLR(FIRST, 0.5), ExponentialLR(SECOND, 0.5)
PLATEAU = ReduceLROnPlateau(SECOND)


@pytest.mark.parametrize(
    ("returned", "optimizers", "schedules"),
    [
        (FIRST, [FIRST], []),
        ([FIRST, SECOND], [FIRST, SECOND], []),
        ((FIRST, SECOND), [FIRST, SECOND], []),
        ({"optimizer": FIRST}, [FIRST], []),
        ({"optimizer": FIRST, "lr_scheduler": None, "monitor": None}, [FIRST], []),
        ({"optimizer": FIRST, "lr_scheduler": ONE}, [FIRST], [(ONE, 0)]),
        ([{"optimizer": FIRST, "lr_scheduler": ONE}, SECOND], [FIRST, SECOND], [(ONE, 0)]),
        ([FIRST, {"optimizer": SECOND, "lr_scheduler": TWO}], [FIRST, SECOND], [(TWO, 1)]),
        (([FIRST, SECOND], [TWO, ONE]), [FIRST, SECOND], [(TWO, 1), (ONE, 0)]),
        ([[FIRST], []], [FIRST], []),
        (([FIRST], ({"scheduler": ONE},)), [FIRST], [(ONE, 0)]),
        (
            ([{"optimizer": FIRST, "lr_scheduler": ONE}, SECOND], [{"scheduler": TWO}]),
            [FIRST, SECOND],
            [(ONE, 0), (TWO, 1)],
        ),
    ],
)
def test_forms(returned: Any, optimizers: list[Any], schedules: list[Any]) -> None:
    found, scheduled = read(returned)
    assert all(a is b for a, b in zip(found, optimizers, strict=True))
    assert [(each.scheduler, each.optimizer) for each in scheduled] == schedules


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        ([], "list"),
        ((), "tuple"),
        (([], []), "tuple"),
        (([FIRST],), "tuple"),
        (([FIRST], [ONE], []), "tuple"),
        ([FIRST, [ONE]], "list"),
        (([FIRST], ONE), "tuple"),
        ("SGD", "str"),
        ({"lr_scheduler": ONE}, "dict"),
        ([FIRST, None], "list"),
    ],
)
def test_what_is_neither_is_refused(returned: Any, kind: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"Line\.configure_optimizers returned {kind}: return an optimizer"
    ):
        read(returned)


def test_the_settings_of_a_scheduler() -> None:
    (schedule,) = read(([FIRST], [ONE]))[1]
    assert schedule == Schedule(ONE, 0, "epoch", 1, None, True, False, None, None)
    assert schedule.takes_metric is False
    given = {"interval": "step", "frequency": 3, "monitor": "m", "strict": False, "name": "rate"}
    (schedule,) = read({"optimizer": SECOND, "lr_scheduler": {"scheduler": PLATEAU, **given}})[1]
    assert schedule == Schedule(PLATEAU, 0, "step", 3, "m", False, False, "rate", None)
    assert schedule.takes_metric is True
    (outer,) = read({"optimizer": SECOND, "monitor": "m", "lr_scheduler": {"scheduler": PLATEAU}})[1]
    assert outer.monitor == "m"
    same = {"scheduler": PLATEAU, "monitor": "m"}
    assert read({"optimizer": SECOND, "monitor": "m", "lr_scheduler": same})[1][0].monitor == "m"
    with pytest.raises(AttributeError):
        schedule.frequency = 1


@pytest.mark.parametrize("frequency", [0, -1, True, 1.5, "1", None])
def test_a_frequency_is_a_whole_number_from_1(frequency: Any) -> None:
    with pytest.raises(ConfigError, match=f"frequency={frequency!r}; give a whole number of at least 1"):
        read(([FIRST], [{"scheduler": ONE, "frequency": frequency}]))


class Free:
    """Scheduler of nothing in particular."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def step(self, value: Any = None) -> None:
        self.given.append(value)


def test_a_scheduler_that_names_no_optimizer_is_the_firsts() -> None:
    assert [each.optimizer for each in read(([FIRST, SECOND], [Free(), TWO]))[1]] == [0, 1]


@pytest.mark.parametrize(
    ("interval", "frequency", "limits", "word"),
    [
        ("step", 3, {"steps": 2}, "max_steps=2"),
        ("step", 3, {"steps": 3}, ""),
        ("step", 3, {"steps": 4, "epochs": 1}, ""),
        ("step", 3, {"epochs": 2}, ""),
        ("step", 3, {"steps": 0}, ""),
        ("epoch", 3, {"epochs": 2}, "max_epochs=2"),
        ("epoch", 3, {"epochs": 3, "steps": 1}, ""),
        ("epoch", 2, {"epochs": 1}, "max_epochs=1"),
        ("epoch", 3, {"epochs": 0}, ""),
        ("epoch", 1, {"epochs": 1}, ""),
    ],
)
def test_a_scheduler_must_be_due_once(
    interval: str, frequency: int, limits: dict[str, int], word: str
) -> None:
    returned = ([FIRST], [{"scheduler": ONE, "interval": interval, "frequency": frequency}])
    if not word:
        assert len(read(returned, **limits)[1]) == 1
        return
    with pytest.raises(ConfigError, match=rf"ExponentialLR has interval='{interval}' .* with {word}: lower"):
        read(returned, **limits)


def test_without_settings_nothing_limits_a_scheduler() -> None:
    returned = ([FIRST], [{"scheduler": ONE, "frequency": 9}])
    assert read_optimizers(Line(), None, lambda: returned)[1][0].frequency == 9


class Needs(Free):
    def step(self, rate: Any) -> None:  # type: ignore[override]  # takes one more
        self.given.append(rate)


class TakesMetrics(Free):
    def step(self, metrics: Any, more: Any) -> None:  # type: ignore[override]  # takes one more
        self.given.append((metrics, more))


def test_what_a_schedulers_step_may_take() -> None:
    returned = ([FIRST], [Needs()])
    with pytest.raises(ConfigError, match=r"Needs\.step takes \(self, rate: .*called without arguments"):
        read(returned)
    with pytest.raises(ConfigError, match=r"TakesMetrics\.step takes"):
        read({"optimizer": FIRST, "monitor": "m", "lr_scheduler": TakesMetrics()})

    class Hooked(Line):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step((metric, "hooked"))

    (schedule,) = read(returned, Hooked())[1]
    schedule.step({})
    assert schedule.scheduler.given == [(None, "hooked")]

    class ByHand(Line):
        automatic_optimization = False

    assert read(returned, ByHand())[1][0].hook is None


def test_when_a_schedule_is_due() -> None:
    every = Schedule(ONE, 0, "step", 3)
    assert [count for count in range(1, 10) if every.is_due("step", count)] == [3, 6, 9]
    assert not any(every.is_due("epoch", count) for count in range(1, 10))


def test_the_metric_of_a_step() -> None:
    class Plateau(Free):
        def step(self, metrics: Any) -> None:  # type: ignore[override]  # takes a metric
            self.given.append(metrics)

    plateau, free = Plateau(), Free()
    Schedule(plateau, 0, monitor="m").step({"m": 2.0})
    assert plateau.given == [2.0]
    # A metric that its step doesn't take isn't looked at, unless the setting says that it does.
    Schedule(free, 0, monitor="m").step({"m": 2.0})
    Schedule(free, 0, monitor="m", reduce_on_plateau=True).step({"m": 2.0})
    assert free.given == [None, 2.0]
    for monitor in ("m", None):
        with pytest.raises(
            ConfigError, match=rf"monitor={monitor!r} was not logged: logged are \['a', 'b'\]"
        ):
            Schedule(plateau, 0, monitor=monitor).step({"b": 1.0, "a": 2.0})
    with pytest.warns(UserWarning, match="monitor='m' was not logged.*with strict=False it isn't stepped"):
        Schedule(plateau, 0, monitor="m", strict=False).step({})
    assert plateau.given == [2.0]
    Schedule(plateau, 0, monitor="m", strict=False).step({"m": 3.0})
    assert plateau.given == [2.0, 3.0]


def test_a_module_without_an_optimizer_is_warned_of() -> None:
    module = Line()
    with pytest.warns(
        UserWarning, match="Line.configure_optimizers returned None: the fit changes no parameter"
    ):
        ((optimizer,), schedules) = read(None, module)
    assert schedules == []
    assert optimizer.param_groups[0]["params"] == list(module.parameters())
    assert optimizer.step() is None


def test_what_steps_take() -> None:
    class Decides(SGD):
        def step(self, closure: Any) -> None:  # type: ignore[override]  # needs it
            closure()

    class Without(SGD):
        def step(self) -> None:  # type: ignore[override]  # takes none
            pass

    parameters = [torch.zeros(1, requires_grad=True)]
    found = {kind: needs_closure(kind(parameters, lr=0.1)) for kind in (SGD, Adam, LBFGS, Decides, Without)}
    assert found == {SGD: False, Adam: False, LBFGS: True, Decides: True, Without: False}
    assert (takes_metric(PLATEAU), takes_metric(ONE), takes_metric(Free())) == (True, False, False)
