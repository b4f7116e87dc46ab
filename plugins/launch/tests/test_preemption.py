"""Signals and limits that tell a run to stop, in one process."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stratagem_launch import Preempted, PreemptionWatch, StopConditions, check_stop_signals
from stratagem_launch.torch_private import loader_workers_outlast
from torch.utils.data import DataLoader

from stratagem.errors import ConfigError


class OneRank:
    """Stands for the collectives of a single process, which are never called."""

    rank, world_size = 0, 1


ONE_RANK: Any = OneRank()


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noticed_and_handlers_are_restored(number: signal.Signals) -> None:
    with PreemptionWatch(ONE_RANK, StopConditions()) as watch:
        assert not watch.is_due()
        signal.raise_signal(number)
        assert watch.is_due()
        assert watch.reason == number.name
        assert watch.notified_at is not None
    assert signal.getsignal(number) is signal.SIG_DFL


def test_the_first_signal_is_the_reason_and_the_time() -> None:
    """Slurm's SIGTERM follows the SIGUSR1 that was asked for; the run is requeued by the first alone."""
    limits = {"the time limit": time.time() - 60}
    with PreemptionWatch(ONE_RANK, StopConditions(limits=limits, grace_period_s=0)) as watch:
        signal.raise_signal(signal.SIGUSR1)
        notified_at = watch.notified_at
        assert notified_at is not None
        signal.raise_signal(signal.SIGTERM)
        assert watch.is_due()
        signal.raise_signal(signal.SIGTERM)
        assert watch.is_due()
        assert (watch.reason, watch.notified_at) == ("SIGUSR1", notified_at)


def test_a_handler_of_the_program_stays() -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    with PreemptionWatch(ONE_RANK, StopConditions()) as watch:
        signal.raise_signal(signal.SIGUSR1)
        assert not watch.is_due()
    assert came == [signal.SIGUSR1]


def test_the_earliest_limit_stops_a_run_a_grace_period_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    limits = {"the end of the job": 4600.0, "the time limit": 1005.25}
    with PreemptionWatch(ONE_RANK, StopConditions((), 5.0, limits)) as watch:
        assert not watch.is_due()
        now = 1000.2
        assert not watch.is_due()
        now = 1000.25
        assert watch.is_due()
        assert watch.reason == "the time limit"


class CountingRanks:
    """Stands for the collectives of two ranks, of which the other one has heard of no signal."""

    rank, world_size, device = 0, 2, torch.device("cpu")

    def __init__(self) -> None:
        self.exchanges: list[int] = []
        self.calls = 0

    def all_reduce(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        assert op == "max"
        self.exchanges.append(self.calls)
        return tensor


def test_several_ranks_exchange_each_half_second_and_agree_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    ranks: Any = CountingRanks()
    with PreemptionWatch(ranks, StopConditions()) as watch:
        for ranks.calls in range(1, 40):
            now += 0.0625
            if ranks.calls == 20:
                signal.raise_signal(signal.SIGUSR1)
            # At first after twice as many calls each time, at most; then after 8 calls of 1/16 s.
            assert watch.is_due() == (ranks.calls == 23)
            if ranks.calls == 23:
                break
        assert watch.reason == "SIGUSR1"
    assert ranks.exchanges == [1, 3, 7, 15, 23]


def test_names_of_signals() -> None:
    assert check_stop_signals("SIGTERM, SIGUSR1") == ("SIGTERM", "SIGUSR1")
    assert check_stop_signals(["SIGHUP"]) == ("SIGHUP",)
    assert check_stop_signals("") == ()
    for wrong in ("SIGKILL", "USR1", [3], 15):
        with pytest.raises(ConfigError, match="stop_signals"):
            check_stop_signals(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_it_exits_with_75_and_can_be_sent() -> None:
    sent = pickle.loads(pickle.dumps(Preempted("SIGUSR1", "/run/x", 7, 2)))
    assert (sent.code, sent.reason, sent.path, sent.step, sent.rank) == (75, "SIGUSR1", "/run/x", 7, 2)


class Number(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index


def test_a_loaders_workers_outlast_a_signal_to_the_whole_group() -> None:
    import psutil

    before = set(psutil.Process().children())  # of other tests, as a fork server
    with loader_workers_outlast(30):
        batches = iter(DataLoader(Number(), 2, num_workers=1))
        next(batches)
        (worker,) = set(psutil.Process().children()) - before
        worker.terminate()
        assert len(list(batches)) == 31
        del batches
