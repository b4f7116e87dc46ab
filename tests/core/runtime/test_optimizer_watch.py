"""Optimizers that a loop steps without the strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import torch
from prepared_objects import RecordingPrepared, prepare
from torch.optim import SGD

from stratagem.collectives.local import LocalCollectives
from stratagem.errors import ConfigError
from stratagem.runtime.optimizer_watch import OptimizerWatch


class Asked(RecordingPrepared):
    steps_directly = True

    def complete_gradients(self, index: int) -> None:
        self.calls.append(("complete", index))

    def step_late_optimizer(self, optimizer: Any) -> None:
        self.calls.append("late")


class Scaled(Asked):
    steps_directly = False


@pytest.fixture
def watch() -> Iterator[OptimizerWatch]:
    made = OptimizerWatch(LocalCollectives(torch.device("cpu")))
    yield made
    made.close()


def test_gradients_of_the_optimizer_that_setup_got_are_completed(watch: OptimizerWatch) -> None:
    prepared = prepare(Asked)
    watch.add(prepared, prepared.optimizers, ())
    prepared.optimizers[0].step()
    with watch.strategy_steps():
        prepared.optimizers[0].step()
    assert prepared.calls == [("complete", 0)]


def test_the_strategy_is_asked_about_one_that_setup_did_not_get(watch: OptimizerWatch) -> None:
    prepared = prepare(Asked)
    watch.add(prepared, prepared.optimizers, ())
    late = SGD(prepared.original_module.parameters(), lr=1.0)
    late.step()
    late.step()
    SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0).step()
    assert prepared.calls == ["late", "late"]
    with pytest.raises(ConfigError, match=r"SGD\.step got a closure"):
        late.step(lambda: torch.ones(()))
    watch.close()
    late.step()
    assert prepared.calls == ["late", "late"]


def test_a_strategy_that_does_not_know_better_refuses(watch: OptimizerWatch) -> None:
    prepared = prepare(RecordingPrepared)
    watch.add(prepared, prepared.optimizers, ())
    with pytest.raises(ConfigError, match=r"SGD steps parameters of Net, and setup\(\) didn't get it"):
        SGD(prepared.original_module.parameters(), lr=1.0).step()


def test_an_optimizer_is_refused_that_another_one_stands_for(watch: OptimizerWatch) -> None:
    replaced, scaled = prepare(Asked), prepare(Scaled)
    given = SGD(replaced.original_module.parameters(), lr=1.0)
    watch.add(replaced, [given], ())
    watch.add(scaled, scaled.optimizers, ())
    for optimizer in (given, scaled.optimizers[0]):
        with pytest.raises(ConfigError, match="step the optimizer that setup"):
            optimizer.step()


def test_parameters_that_setup_replaced_are_refused(watch: OptimizerWatch) -> None:
    prepared, before = prepare(Asked), torch.nn.Parameter(torch.ones(2))
    watch.add(prepared, prepared.optimizers, [ref(before)])
    with pytest.raises(ConfigError, match=r"steps parameters that setup\(\) replaced"):
        SGD([before], lr=1.0).step()


def test_one_with_the_id_of_a_former_parameter_is_not_refused(watch: OptimizerWatch) -> None:
    prepared, before = prepare(Asked), torch.nn.Parameter(torch.ones(2))
    gone = ref(before)
    watch.add(prepared, prepared.optimizers, [gone])
    del before
    again = [torch.nn.Parameter(torch.ones(2)) for _ in range(50)]  # one of them may have its id
    for parameter in again:
        SGD([parameter], lr=1.0).step()
    assert gone() is None
