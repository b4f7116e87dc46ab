"""Ranks that hold copies are compared, and a difference names what, when and who."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from threads import on_threads
from torch import nn

from stratagem import ConfigError, RunConfig
from stratagem.collectives.base import Collectives
from stratagem.collectives.local import LocalCollectives
from stratagem.errors import ReplicaError
from stratagem.strategies import ReplicaGuard
from stratagem.strategies.optimizer_state import optimizer_replicas

# AdamW's very first steps in several threads at once don't always give the same bits (torch 2.13).
STEPS = threading.Lock()


class Copies:
    """A model and its optimizer, trained alike on every rank; a stand-in for what a strategy prepares."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        for parameter in self.net.parameters():
            nn.init.constant_(parameter, 0.5)
        self.optimizers = [torch.optim.AdamW(self.net.parameters(), lr=0.1)]

    def step(self) -> None:
        for parameter in self.net.parameters():
            parameter.grad = torch.ones_like(parameter)
        with STEPS:
            self.optimizers[0].step()

    def replicas(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self.net.named_parameters():
            yield f"parameter {name!r}", parameter
        for index, optimizer in enumerate(self.optimizers):
            yield from optimizer_replicas(index, optimizer, counts_too=True)


def run(world_size: int, spoil: Any, every: int = 5, steps: int = 20) -> Any:
    def work(collectives: Collectives) -> int:
        copies: Any = Copies()
        guard = ReplicaGuard(copies, collectives, every)
        for step in range(1, steps + 1):
            copies.step()
            spoil(copies, collectives.rank, step)
            guard.after_step(step)
        return collectives.calls  # type: ignore[attr-defined]  # counted by these tests' collectives

    return on_threads(world_size, work)


def test_copies_that_stay_equal_cost_one_message_at_each_point() -> None:
    # After steps 1, 2 and 4, then every 5.
    assert run(3, lambda *_: None) == [7, 7, 7]
    assert run(2, lambda *_: None, every=0) == [0, 0]


def parameter_drifts(copies: Copies, rank: int, step: int) -> None:
    if rank == 1 and step == 7:
        with torch.no_grad():
            copies.net[1].bias[0] += 1e-6


def rate_differs(copies: Copies, rank: int, step: int) -> None:
    if rank == 2 and step == 2:
        copies.optimizers[0].param_groups[0]["betas"] = (0.8, 0.999)


def step_is_lost(copies: Copies, rank: int, step: int) -> None:
    if rank == 0 and step == 4:
        copies.optimizers[0].state[copies.net[0].weight]["step"] -= 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (parameter_drifts, r"^after step 10, parameter '1\.bias' isn't on rank 1 what it is on rank 0, 2, "),
        (
            rate_differs,
            "^after step 2, the settings of optimizer 0 isn't on rank 2 what it is on rank 0, 1, ",
        ),
        (step_is_lost, "^after step 4, the step counts of optimizer 0 on cpu isn't on rank 0 "),
    ],
)
def test_a_difference_is_named_on_every_rank(spoil: Any, words: str) -> None:
    with pytest.raises(ReplicaError, match=words):
        run(3, spoil)


def test_a_rank_that_has_something_else() -> None:
    def freeze(copies: Copies, rank: int, step: int) -> None:
        if rank == 1 and step == 1:
            copies.net.register_parameter("more", nn.Parameter(torch.ones(1)))

    with pytest.raises(
        ReplicaError, match=r"after step 1, rank 0 lacks parameter 'more', which other ranks have"
    ):
        run(2, freeze)


def test_before_a_checkpoint() -> None:
    def work(collectives: Collectives) -> None:
        copies: Any = Copies()
        guard = ReplicaGuard(copies, collectives, 100)
        guard.compare("before the checkpoint")
        with torch.no_grad():
            copies.net[0].weight[0, 0] += collectives.rank
        guard.compare("before the checkpoint of step 3")

    with pytest.raises(ReplicaError, match=r"^before the checkpoint of step 3, parameter '0\.weight'"):
        on_threads(2, work)


def test_one_process_compares_nothing() -> None:
    copies: Any = Copies()
    guard = ReplicaGuard(copies, LocalCollectives(torch.device("cpu")), 1)
    assert not guard.is_active
    guard.after_step(1)


@pytest.mark.parametrize("every", [-1, 2.5, True, "often"])
def test_how_often_is_a_number_of_steps(every: Any) -> None:
    with pytest.raises(ConfigError, match="check_replicas_every"):
        RunConfig(check_replicas_every=every)


def test_gradients_are_compared_before_the_steps_after_which_copies_are() -> None:
    """A strategy may make parameters equal in the step, whatever the gradients were."""

    class Shared(Copies):
        def gradient_replicas(self, index: int) -> Iterator[tuple[str, Any]]:
            for name, parameter in self.net.named_parameters():
                yield f"the gradient of {name!r}", parameter.grad

    def work(collectives: Collectives, differs_at: int, steps: int) -> int:
        copies: Any = Shared()
        guard = ReplicaGuard(copies, collectives, every=5)
        for step in range(1, steps + 1):
            for parameter in copies.net.parameters():
                parameter.grad = torch.ones_like(parameter) * (1 + (step == differs_at) * collectives.rank)
            guard.before_step(0)
            guard.after_step(step)
        return collectives.calls  # type: ignore[attr-defined]  # counted by these tests' collectives

    assert on_threads(2, lambda collectives: work(collectives, 3, 5)) == [8, 8]
    with pytest.raises(
        ReplicaError, match=r"before step 4, the gradient of '0.weight' isn't on rank 1.*backward"
    ):
        on_threads(2, lambda collectives: work(collectives, 4, 5))


def test_the_last_steps_are_compared_once() -> None:
    def work(collectives: Collectives, spoiled: bool) -> int:
        copies: Any = Copies()
        guard = ReplicaGuard(copies, collectives, every=100)
        guard.compare_last_steps("at the end of the run")
        for step in range(1, 4):
            copies.step()
            guard.after_step(step)
        if spoiled:
            parameter_drifts(copies, collectives.rank, 7)
        guard.compare_last_steps("at the end of the run")
        guard.compare_last_steps("at the end of the run")
        return collectives.calls  # type: ignore[attr-defined]  # counted by these tests' collectives

    assert on_threads(2, lambda collectives: work(collectives, False)) == [3, 3]
    with pytest.raises(ReplicaError, match=r"at the end of the run, parameter '1\.bias'"):
        on_threads(2, lambda collectives: work(collectives, True))
