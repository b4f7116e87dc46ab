"""`SimpleProfiler`: show how often each hook and phase ran, and how long it took."""

from __future__ import annotations

import os
from time import perf_counter

from stratagem.errors import ConfigError
from stratagem_trainer.profilers.base import Profiler


class SimpleProfiler(Profiler):
    """A table of actions with mean, calls, total and share of the stage, the longest first.

    Actions contain each other, as a step contains a backward, so that shares don't sum to 100 %. On an accelerator,
    times are measured on the host, which doesn't wait for the device.

    Args:
        dirpath: folder of the tables, one for each rank; None is the run's folder.
        filename: prefix of their names.
        extended: whether to show mean, calls and share; False shows only the total.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        extended: bool = True,
    ) -> None:
        super().__init__(dirpath, filename)
        self.extended = extended
        self.durations: dict[str, list[float]] = {}
        """Name of an action → seconds of each call."""
        self._open: list[tuple[str, float]] = []

    def begin(self, stage: str, rank: int, run_dir: str | None) -> None:
        super().begin(stage, rank, run_dir)
        self.durations, self._open = {}, []
        self._began_s = perf_counter()

    def start(self, action_name: str) -> None:
        self._open.append((action_name, perf_counter()))

    def stop(self, action_name: str) -> None:
        now = perf_counter()
        for index in range(len(self._open) - 1, -1, -1):
            name, began = self._open[index]
            if name == action_name:
                del self._open[index]
                self.durations.setdefault(name, []).append(now - began)
                return
        raise ConfigError(f"stop({action_name!r}) was called without start({action_name!r})")

    def summary(self) -> str:
        took = perf_counter() - self._began_s
        rows = sorted(self.durations.items(), key=lambda row: -sum(row[1]))
        width = max((len(name) for name, _ in rows), default=4)
        head = f"profile of {self._stage}, rank {self._rank}: {took:.3f} s"
        if not self.extended:
            return "\n".join([head, *(f"  {n:<{width}}  {sum(d):10.4f} s" for n, d in rows)])
        lines = [
            head,
            f"  {'part':<{width}}  {'mean (s)':>10}  {'calls':>7}  {'total (s)':>10}  {'share':>6}",
        ]
        for name, each in rows:
            total = sum(each)
            lines.append(
                f"  {name:<{width}}  {total / len(each):10.6f}  {len(each):7d}  {total:10.4f}  {total / took:6.1%}"
            )
        return "\n".join(lines)
