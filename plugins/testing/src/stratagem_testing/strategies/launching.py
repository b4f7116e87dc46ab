"""Start a run's processes by each start method, and end them when one fails."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stratagem.errors import StratagemError, WorkerError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import RecipeModule
from stratagem_testing.workers import TIMEOUT_S

if TYPE_CHECKING:
    from stratagem import Runtime


@check(world_sizes=(2,))
def check_start_methods(subject: StrategySubject) -> None:
    """Processes start by each declared start method, form one group, and return rank 0's value."""
    _refuse_one_process(subject)
    for method in subject.capabilities.start_methods:
        ranks = subject.alone(_start, method, timeout_s=TIMEOUT_S)
        expect(
            ranks == [0, 1],
            f"started with start_method={method!r}, the processes have the ranks {ranks}",
        )


def _start(subject: StrategySubject, method: str) -> Any:
    return subject.runtime(start_method=method).launch(_gather_ranks, quiet=True)


def _gather_ranks(runtime: Runtime) -> list[int]:
    total = runtime.all_gather(_ones(runtime) * runtime.rank)
    return [int(rank) for rank in total.flatten().tolist()]


def _ones(runtime: Runtime) -> Tensor:
    import torch

    return torch.ones((), device=runtime.device)


@check(world_sizes=(2,))
def check_rank_raises(subject: StrategySubject) -> None:
    """An exception in one rank ends the run, and its error has the rank and the traceback."""
    for how, words, function in (
        ("raise", "the third batch is cursed", "training_step"),
        ("raise in backward", "the third gradient is cursed", "curse_gradient"),
    ):
        failed = _failed(subject, how)
        expect(failed.rank == 1, f"rank 1 raised, but rank {failed.rank} is named: {failed.message}")
        expect(words in failed.message, f"the error lacks the rank's exception: {failed.message}")
        expect(
            f"in {function}" in failed.traceback,
            f"the traceback doesn't lead to the line that raised, in {function}",
        )


@check(world_sizes=(2,))
def check_rank_killed(subject: StrategySubject) -> None:
    """A rank that is killed by SIGKILL ends the run, and is named."""
    failed = _failed(subject, "kill")
    expect(failed.rank == 1, f"rank 1 was killed, but rank {failed.rank} is named: {failed.message}")
    expect("SIGKILL" in failed.message, f"the signal isn't named: {failed.message}")


class _Cursed(RecipeModule):
    """Fails on rank 1 in its third batch, while other ranks continue."""

    how = "raise"
    folder = ""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and self.global_rank == 1 and self.how not in ("kill", "raise"):
            # Fail between two layers, where a strategy may have gathered or reduced only some of them.
            self.net.get_submodule("2").register_forward_hook(_curse)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if batch_idx == 0:
            Path(self.folder, f"pid-{self.global_rank}").write_text(str(os.getpid()))
        if batch_idx == 2 and self.global_rank == 1:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "raise":
                raise ArithmeticError("the third batch is cursed")
        return super().training_step(batch, batch_idx)


def _curse(layer: Any, args: Any, output: Tensor) -> None:
    def curse_gradient(gradient: Tensor) -> None:
        raise ArithmeticError("the third gradient is cursed")

    output.register_hook(curse_gradient)  # type: ignore[no-untyped-call]  # torch has no types for it


@dataclass(frozen=True)
class _Failed:
    """The error that the launching process got."""

    message: str
    rank: int
    traceback: str


def _failed(subject: StrategySubject, how: str) -> _Failed:
    _refuse_one_process(subject)
    # Without this timeout, ranks would wait for the failed one for up to 30 minutes.
    failed: _Failed | None = subject.alone(_fail, how, timeout_s=TIMEOUT_S)
    expect(failed is not None, "the failure of a rank is lost: fit returns as if there was none")
    assert failed is not None
    left = [pid for pid in _pids(subject.folder) if _runs(pid)]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    expect(not left, f"{len(left)} of 2 workers are still running after fit has ended")
    return failed


def _fail(subject: StrategySubject, how: str) -> _Failed | None:
    module = _Cursed(Recipe(), Recipe.global_batch // subject.shares())
    module.how, module.folder, module.replaced = how, subject.folder, subject.optimizer
    methods = subject.capabilities.start_methods
    trainer = subject.trainer(start_method="fork" if "fork" in methods else None, max_steps=20)
    try:
        trainer.fit(module)
    except StratagemError as error:
        rank = error.rank if isinstance(error, WorkerError) else -1
        return _Failed(str(error), rank, getattr(error, "traceback", ""))
    return None


def _refuse_one_process(subject: StrategySubject) -> None:
    if subject.processes() == 1:
        raise NotApplicable("it runs in the process that calls it")


def _pids(folder: str) -> list[int]:
    return [int(path.read_text()) for path in Path(folder).glob("pid-*")]


def _runs(pid: int) -> bool:
    """Return whether a process is still running after a second. One that has ended may wait to be reaped."""
    for _ in range(20):
        try:
            if _state(pid) == "Z":
                return False
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.05)
    return True


def _state(pid: int) -> str:
    """Return the process's state as one letter, on Linux; "" elsewhere."""
    if not os.path.isdir("/proc/self"):
        return ""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
