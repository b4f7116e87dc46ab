"""`StragglerWatch`: names slow ranks during training."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from stratagem_report.phases import DATA, OWN, PHASES
from stratagem_report.slowness import slow_ranks

if TYPE_CHECKING:
    from stratagem import Collectives

WINDOW = 6
"""Number of steps between two comparisons. A rank is named if it was slow in two of three comparisons in a row."""
FIRST = 2
"""Number of first steps that don't count, because they also build caches and graphs."""
SILENCE = 1000
"""Number of steps after which a rank that is still slow is named again."""


class StragglerWatch:
    """Compares the ranks' own time of the last steps, without making any rank wait.

    A rank's own time is its time without waiting for others. On the CPU, the processor time of the loop's thread is
    compared, too: if a strategy communicates in its forward, all ranks wait there for the slowest one, and only the
    processor time shows which one that is.

    Args:
        collectives: of all ranks, with a torch process group.
        note: called on rank 0 with a slow rank's (rank, step, ratio, phase).
    """

    def __init__(self, collectives: Collectives, note: Callable[[int, int, float, str], None]) -> None:
        self._collectives, self._note = collectives, note
        self._compares_cpu = collectives.device.type == "cpu"
        self._cpu_ns = thread_time_ns()
        self._window: list[list[int]] = []
        self._mine = torch.zeros(2 + len(OWN), dtype=torch.float64)
        self._everyone = [torch.empty_like(self._mine) for _ in range(collectives.world_size)]
        self._sent: tuple[int, Any] | None = None
        """The step and torch's `Work` of an exchange that isn't complete."""
        self._suspects: deque[set[int]] = deque(maxlen=2)
        """The slow ranks of the last two comparisons."""
        self._reported: dict[int, int] = {}

    def after_step(self, step: int, ns: list[int]) -> None:
        """Count a step. After every sixth step, start a comparison, which is collective.

        Args:
            step: number of finished steps.
            ns: this step's nanoseconds by phase.
        """
        if self._sent is not None:
            self._receive()
        if step > FIRST:
            self._window.append(ns)
        elif self._compares_cpu:
            self._cpu_ns = thread_time_ns()
        if step % WINDOW == 0:
            self._send(step)

    def close(self, failed: bool) -> None:
        """Receive an exchange that isn't complete. Collective, unless this rank failed."""
        if self._sent is not None and not failed:
            self._receive(wait=True)

    def _send(self, step: int) -> None:
        if self._sent is not None:
            self._receive(wait=True)
        window, self._window = self._window, []
        cpu_ns = thread_time_ns() if self._compares_cpu else 0
        columns = list(zip(*window))
        own = map(sum, zip(*(columns[phase] for phase in OWN)))
        means = [sum(columns[phase]) / len(window) for phase in OWN]
        mine = [median(own), (cpu_ns - self._cpu_ns) / len(window), *means]
        self._cpu_ns = cpu_ns
        self._mine.copy_(torch.tensor(mine, dtype=torch.float64))
        group = self._collectives.process_group
        # CPU tensors go through gloo, whatever backend the gradients use, and no rank waits for this exchange.
        self._sent = step, dist.all_gather(self._everyone, self._mine, group=group, async_op=True)

    def _receive(self, wait: bool = False) -> None:
        assert self._sent is not None
        step, work = self._sent
        if not wait and not work.is_completed():
            return
        self._sent = None
        with suppress(RuntimeError):  # a rank is gone: the loop's own collective calls report it
            work.wait()
            self._report(step, [tensor.tolist() for tensor in self._everyone])

    def _report(self, step: int, everyone: Sequence[Sequence[float]]) -> None:
        if self._collectives.rank != 0:
            return
        found = {each.rank: (each, "its own work") for each in slow_ranks([row[0] for row in everyone])}
        if self._compares_cpu:
            for each in slow_ranks([row[1] for row in everyone]):
                found.setdefault(each.rank, (each, "its processor time"))
        suspects = set().union(*self._suspects)
        self._suspects.append(set(found))
        for each, what in found.values():
            if each.rank not in suspects or step - self._reported.get(each.rank, -SILENCE) < SILENCE:
                continue
            self._reported[each.rank] = step
            phase = _most_different([row[2:] for row in everyone], each.rank)
            print(
                f"rank {each.rank} is {100 * (each.ratio - 1):.0f} % slower than the others at step {step}: {what} "
                f"takes {each.own_ns / 1e6:.1f} ms a step and theirs {each.others_ns / 1e6:.1f} ms, most of the "
                f"difference in {phase}",
                file=sys.stderr,
                flush=True,
            )
            self._note(each.rank, step, each.ratio, phase)


def _most_different(by_phase: Sequence[Sequence[float]], rank: int) -> str:
    """Return the phase in which a rank needs most time beyond the others' median."""
    excess = {}
    for index, phase in enumerate(OWN):
        others = [row[index] for other, row in enumerate(by_phase) if other != rank]
        excess[phase] = by_phase[rank][index] - median(others)
    name = PHASES[max(excess, key=lambda phase: excess[phase])]
    return "waiting for data" if name == PHASES[DATA] else name
