"""What a session opens, whose ranks it takes, and what is left where it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from averaging import AveragedPrepared, Averaging, Twins
from small import Line
from stratagem_ddp import DDPStrategy
from wrong_strategies import OpensNothing

import stratagem
from stratagem.errors import CombinationError

SCRIPT = Path(__file__).with_name("opening_script.py")


@pytest.mark.parametrize("world_size", [1, 2])
def test_after_a_run_that_failed_to_open_the_next_one_works(world_size: int) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2"] if world_size > 1 else []
    support = Path(__file__).parents[2] / "support"
    path = os.pathsep.join(filter(None, (str(support), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *torchrun, str(SCRIPT)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(printed) == world_size
    for seen in printed:
        assert seen.pop("at the end") == [False, 0]
        assert len(seen) == 8 + (world_size > 1)
        for name, (failed, left, next_run) in seen.items():
            expected = {"DigestMismatchError"} if name == "digest" else {"Broken"}
            # A rank whose peer failed finds it gone.
            allowed = expected | {"RuntimeError", "CollectiveError"} if name == "one rank" else expected
            assert failed in allowed, name
            assert left == [False, 0, False], name
            assert next_run == "7", name


class ForgetsRanks:
    """A wrapper of the hook `reduce` whose collectives are those of one process."""

    @stratagem.hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        yield
        return stratagem.LocalCollectives(request.device)


class HidesData(stratagem.CollectivesWrapper):
    """Says that every rank reads batches of its own."""

    data = property(lambda self: self)


class Hides:
    @stratagem.hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        return HidesData((yield))


def nothing(runtime: Any) -> None:
    raise AssertionError("never reached")


@pytest.mark.parametrize(
    ("strategy", "plugin", "words"),
    [
        (OpensNothing(), (), r"has LocalCollectives of rank 0 of 1 .* in OpensNothing\.open_collectives"),
        (Averaging(), (ForgetsRanks(),), "has LocalCollectives of rank 0 of 1 in the process that is rank"),
        (Twins(), (Hides(),), "HidesData has other ranks in `data`.*CollectivesWrapper"),
    ],
)
def test_collectives_of_other_ranks_than_the_runs_are_refused(strategy: Any, plugin: Any, words: str) -> None:
    devices = 4 if isinstance(strategy, Twins) else 2
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices, plugins=plugin)
    with pytest.raises(CombinationError, match=words):
        runtime.launch(nothing, quiet=True)


class Counting(stratagem.CollectivesWrapper):
    calls = 0

    def all_reduce(self, tensor: torch.Tensor, op: Any = "mean") -> torch.Tensor:
        self.calls += 1
        return super().all_reduce(tensor, op)


class Counts:
    @stratagem.hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        return Counting((yield))


def through_strategy(runtime: Any) -> Any:
    strategy = runtime.session.run.strategy
    total = strategy.all_reduce(torch.tensor(strategy.global_rank + 1.0), "sum").item()
    assert strategy.collectives is runtime.collectives
    runtime.setup(Line())
    return total, strategy.collectives.calls, strategy.world_size


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_strategys_collectives_go_through_wrappers(world_size: int) -> None:
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=120))
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=world_size, plugins=[Counts()])
    total = sum(range(1, world_size + 1))
    assert runtime.launch(through_strategy, quiet=True) == (total, 1, world_size)
    with pytest.raises(stratagem.StratagemError, match="only during a run"):
        _ = strategy.collectives


class NotedPrepared(AveragedPrepared):
    """Writes down how it is ended."""

    def restore_module(self) -> None:
        dist.all_reduce(torch.ones(1))  # every rank is there
        self._tell("restored")

    def release(self) -> None:
        self._tell("released")
        super().release()

    def _tell(self, what: str) -> None:
        with open("events", "a", encoding="utf-8") as file:
            file.write(f"{dist.get_rank()} {what}\n")


class Tells(Averaging):
    prepared = NotedPrepared


def set_up(runtime: Any, fails: bool) -> None:
    runtime.setup(Line())
    if fails:
        raise ArithmeticError("one too many")


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_is_restored_where_all_went_well(fails: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    runtime = stratagem.Runtime(Tells(), accelerator="cpu", devices=2)
    if fails:
        with pytest.raises(Exception, match="one too many"):
            runtime.launch(set_up, True, quiet=True)
    else:
        runtime.launch(set_up, False, quiet=True)
    events = Path("events").read_text(encoding="utf-8").splitlines()
    if fails:
        assert {line[2:] for line in events} == {"released"}
    else:
        for rank in "01":
            assert [line[2:] for line in events if line[0] == rank] == ["restored", "released"]
