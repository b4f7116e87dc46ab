"""`PyTorchProfiler`: traces of torch's profiler, and a table of where the time of a step goes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from stratagem_trainer.profilers.base import Profiler

_PHASES = ("data wait", "training_step", "backward", "optimizer_step", "evaluation_step")
_COMMUNICATION = ("c10d::", "gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


class PyTorchProfiler(Profiler):
    """Write a trace of some steps on each rank, for chrome://tracing or Perfetto, and a table of their phases.

    The first rows of the table are the wait for data and the communication. Communication is also part of the other
    phases. If collectives overlap with a backward, the row has their duration, not the time that the step lost.
    `profile("name")` adds a name to the trace.

    Args:
        dirpath: folder of the traces; None is the run's folder.
        filename: prefix of their names.
        group_by_input_shapes: whether to list operators separately by the shapes of their inputs.
        export_to_chrome: whether to write traces.
        row_limit: number of operators in the second table; 0 leaves the table out.
        sort_by_key: order of that table, a name of `torch.profiler`; None is the time on the device, or else the
          host.
        profiler: other arguments of `torch.profiler.profile`. The default `schedule` skips 1 step, warms up in 1 and
            records 3.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        **profiler: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        self.group_by_input_shapes, self.export_to_chrome = group_by_input_shapes, export_to_chrome
        self.row_limit, self.sort_by_key = row_limit, sort_by_key
        self._arguments = profiler
        self._profile: torch.profiler.profile | None = None
        self._open: list[tuple[str, Any]] = []
        self._text = ""

    def begin(self, stage: str, rank: int, run_dir: str | None) -> None:
        super().begin(stage, rank, run_dir)
        self._open, self._text = [], ""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        arguments: dict[str, Any] = {
            "activities": activities,
            "record_shapes": self.group_by_input_shapes,
            "schedule": schedule(wait=1, warmup=1, active=3, repeat=1),
            **self._arguments,
        }
        self._profile = torch.profiler.profile(on_trace_ready=self._take, **arguments)
        self._profile.start()

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        with record_function(action_name):
            yield action_name

    def start(self, action_name: str) -> None:
        context: Any = record_function(action_name)
        context.__enter__()
        self._open.append((action_name, context))

    def stop(self, action_name: str) -> None:
        name, context = self._open.pop()
        assert name == action_name, f"{action_name!r} isn't what was started last"
        context.__exit__(None, None, None)

    def step(self) -> None:
        if self._profile is not None:
            self._profile.step()

    def summary(self) -> str:
        return self._text or (
            f"profile of {self._stage}, rank {self._rank}: no step was recorded, because the stage ended before the "
            "first step of the schedule"
        )

    def finish(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        super().finish()

    def _take(self, profile: torch.profiler.profile) -> None:
        """Keep the table and the trace of the recorded steps, before the profiler drops its events."""
        path = self._path("json")
        if self.export_to_chrome and path is not None:
            profile.export_chrome_trace(path)
        averages = profile.key_averages(group_by_input_shape=self.group_by_input_shapes)
        totals_us = {event.key: 0.0 for event in averages}
        for event in averages:
            totals_us[event.key] += event.cpu_time_total
        lines = [
            f"profile of {self._stage}, rank {self._rank}",
            *step_table(totals_us, _steps_in(totals_us, averages)),
        ]
        if self.row_limit:
            by = self.sort_by_key or (
                "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
            )
            lines += ["", averages.table(sort_by=by, row_limit=self.row_limit)]
        self._text = "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_profile": None, "_open": []}


def step_table(totals_us: Mapping[str, float], steps: int) -> list[str]:
    """Return lines with the time of a step by phase.

    Args:
        totals_us: name of an event → its time on the host over all steps, in microseconds.
        steps: number of recorded steps.
    """
    whole = sum(time for name, time in totals_us.items() if name.startswith("ProfilerStep"))
    # A collective appears as events of torch, of its backend and of a kernel. Count it once.
    talked = max(sum(t for name, t in totals_us.items() if name.startswith(kind)) for kind in _COMMUNICATION)
    phases = {name: totals_us.get(name, 0.0) for name in _PHASES}
    rows = [("data wait", phases.pop("data wait")), ("communication", talked), *phases.items()]
    rows.append(("other", max(0.0, whole - totals_us.get("data wait", 0.0) - sum(phases.values()))))
    shown = [(name, time) for name, time in rows if time or name in ("data wait", "communication")]
    return [
        f"  {'phase':<16}  {'ms per step':>11}  {'share':>6}",
        *(
            f"  {name:<16}  {time / 1000 / max(steps, 1):11.3f}  {time / whole if whole else 0.0:6.1%}"
            for name, time in shown
        ),
    ]


def _steps_in(totals_us: Mapping[str, float], averages: Any) -> int:
    return sum(event.count for event in averages if event.key.startswith("ProfilerStep"))
