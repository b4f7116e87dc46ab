"""async averages in the background, holds up no step, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_bagua import BaguaStrategy
from stratagem_bagua.background import BackgroundMean
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.trained import RecipeModule, train
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem
from stratagem.errors import CollectiveError

THREAD = "bagua-async"


def launched(function: Callable[..., Any], devices: int, *args: Any, **options: Any) -> Any:
    strategy = BaguaStrategy("async", start_method="fork", timeout_s=60, **options)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices)
    return runtime.launch(function, *args, quiet=True)


class Trained:
    """A net of this rank and its optimizer, under the strategy or alone."""

    def __init__(self, runtime: Any = None, rank: int = 0) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
        self.optimizer: Any = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.optimizer.rank_local = True  # by hand, ranks train nets of their own
        self.runtime, self.model = runtime, self.net
        if runtime is not None:
            self.model, self.optimizer = runtime.setup(self.net, self.optimizer)
        self.generator = torch.Generator().manual_seed(100 + rank)

    def step(self) -> None:
        x = torch.randn(4, 12, generator=self.generator)
        loss = F.cross_entropy(self.model(x), torch.randint(3, (4,), generator=self.generator))
        if self.runtime is None:
            loss.backward()
        else:
            self.runtime.backward(loss, self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def flat(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()


def of_all(values: Tensor) -> Tensor:
    ranks = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, values)
    return torch.stack(ranks)


def beside_the_algorithm_by_hand(runtime: Any) -> tuple[float, float, list[bool]]:
    """Send after each odd step, and apply after the even one that follows."""
    ours, hand = Trained(runtime, runtime.rank), Trained(rank=runtime.rank)
    averaging, busy = ours.optimizer.prepared.averaging, []
    apart: list[float] = []
    time.sleep(0.1)
    for step in range(1, 9):
        ours.step()
        hand.step()
        if step % 2:
            given = hand.flat
        else:
            moved = hand.flat + of_all(given).mean(0) - given
            nn.utils.vector_to_parameters(moved, hand.net.parameters())
        apart.append(float((ours.flat - hand.flat).abs().max()))
        busy.append(averaging.is_busy)
        while averaging.is_busy and not averaging.is_ready:
            time.sleep(0.001)
        time.sleep(0.1)
    drift = float((of_all(ours.flat) - ours.flat).abs().max())
    return max(apart), drift, busy


def test_replicas_move_by_the_mean_minus_what_they_gave() -> None:
    apart, drift, busy = launched(beside_the_algorithm_by_hand, 3, sync_interval_ms=50)
    assert busy == [True, False] * 4
    assert apart <= 1e-6
    assert drift > 1e-3


def with_a_straggler(runtime: Any, folder: str) -> list[Any]:
    """Train until rank 0 has made 60 steps after rank 1's last one.

    Returns:
        By rank the steps, the averages, and whether all was as it should be after it.
    """
    trained, slow = Trained(runtime, runtime.rank), runtime.rank == 1
    prepared = trained.optimizer.prepared
    slow_is_over, fast_is_over = Path(f"{folder}.slow"), Path(f"{folder}.fast")
    runtime.barrier()
    if slow:
        while prepared.averaging.given < 3:
            trained.step()
            time.sleep(0.05)
        slow_is_over.touch()
        while not fast_is_over.exists():
            time.sleep(0.01)
    else:
        left = 60
        while left:
            left -= slow_is_over.exists()
            trained.step()
            time.sleep(0.001)
        fast_is_over.touch()
    steps = prepared.steps
    with prepared.evaluating():
        averaged = of_all(trained.flat)
        is_one_model = torch.equal(averaged[0], averaged[-1])
    own, given = trained.flat, prepared.averaging.given
    is_one_model = is_one_model and not torch.equal(of_all(own)[0], of_all(own)[-1])
    runtime.save(folder)
    trained.step()
    runtime.load(folder)
    is_back = torch.equal(trained.flat, own) and prepared.steps == steps
    found: list[Any] = runtime.collectives.gather_objects(
        (steps, given, is_one_model, is_back, *frozen_on_the_way(trained))
    )
    return found


def frozen_on_the_way(trained: Trained) -> tuple[bool, bool]:
    """Whether a parameter that is frozen now is the ranks' average after the next step, and stays so."""
    trained.net[0].weight.requires_grad_(False)
    trained.step()
    weights = trained.net[0].weight.detach().clone()
    for _ in range(20):
        trained.step()
        time.sleep(0.002)
    ranks = of_all(weights)
    return torch.equal(ranks[0], ranks[1]), torch.equal(weights, trained.net[0].weight)


def test_no_step_waits_for_a_slow_rank_and_everybody_else_sees_one_model(tmp_path: Path) -> None:
    fast, slow = launched(with_a_straggler, 2, str(tmp_path / "saved"), sync_interval_ms=20)
    assert fast[0] > 60
    assert fast[1] == slow[1] >= 3
    assert all((*fast[2:], *slow[2:])), (fast, slow)


# The thread ---------------------------------------------------------------------------------------------


class Raises(RecipeModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 6:
            raise ArithmeticError("the seventh batch is cursed")
        return super().training_step(batch, batch_idx)


def threads_after(subject: StrategySubject) -> tuple[list[bool], list[str]]:
    """Whether the thread was there in a run that ends well and in one that fails, and what is left of both."""
    seen = []
    for kind in (RecipeModule, Raises):
        with suppress(ArithmeticError):
            train(subject, Recipe(), module_class=kind, callbacks=[watch := Watch()])
        seen.append(watch.seen)
    return seen, [thread.name for thread in threading.enumerate()]


class Watch(stratagem.Callback):
    seen = False

    def on_train_batch_end(self, *args: Any) -> None:
        self.seen = self.seen or THREAD in [thread.name for thread in threading.enumerate()]


def test_no_thread_outlives_a_run() -> None:
    subject = StrategySubject("bagua_async", options={"sync_interval_ms": 1}, world_size=2)
    for seen, left in subject.run(threads_after):
        assert seen == [True, True]
        assert THREAD not in left


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def one_of_two(rank: int, port: int, case: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    wait = timedelta(seconds=30)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=wait)
    mean = BackgroundMean(group := dist.new_group([0, 1], wait), 1 if case == "late" else 30)
    if rank == 1:
        if case == "ends":  # when it is waited for
            group.get_group_store().add("given/1", 1)
            os._exit(0)
        if case != "closes":
            group.get_group_store().wait(
                ["over"], timedelta(seconds=200)
            )  # comes when it isn't waited for any more
        dist.barrier()
        os._exit(0)
    mean.give(torch.ones(100_000))
    if case == "closes":
        time.sleep(0.2)
        mean.close()
    else:
        for _ in range(2):  # and again, if it is asked again
            with pytest.raises(
                CollectiveError, match="background has failed, and another rank may have ended"
            ):
                mean.take(wait=True)
        mean.close()
    assert THREAD not in [thread.name for thread in threading.enumerate()]
    if case != "ends":
        group.get_group_store().set("over", "1")
        dist.barrier()
    os._exit(0)


@pytest.mark.parametrize("case", ["ends", "late", "closes"])
def test_a_missing_rank_does_not_block_the_others(case: str) -> None:
    torch.multiprocessing.start_processes(one_of_two, (free_port(), case), nprocs=2, start_method="fork")


def test_the_plan_says_what_no_run_can_promise() -> None:
    first, second = BaguaStrategy("async", warmup_steps=20).plan_lines()
    assert (
        first
        == "replicas train independently, averaged in the background each 500 ms, after 20 steps of warm-up"
    )
    assert "no two runs are alike, nor a continued run" in second
