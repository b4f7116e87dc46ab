"""What was compiled, and how long it took: one line on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from stratagem_compile.torch_private import graphs, on_compilations

_LABEL_WIDTH = 12
"""Of the plan's labels."""
_STEPS = 2
"""Steps in which torch is expected to compile: the second one sees the optimizer's gradients and other sizes."""


class CompileReport:
    """Measures compilations of this process, and prints them after two steps.

    Args:
        subject: what is compiled, as "6 blocks of 1 kind".
        prints: whether this rank prints.
    """

    def __init__(self, subject: str, prints: bool) -> None:
        self._subject, self._prints = subject, prints
        self._seconds = 0.0
        self._began: float | None = None
        self._forwards = 0
        self._first_caller: object = None
        self._first_graphs = self._reported_graphs = graphs()
        self._reported_seconds = 0.0
        self._is_reported = False
        self._remove = on_compilations(self._start, self._end)

    def count_forward(self, caller: object) -> None:
        """Count a forward for training of the module that was called first; the one after two steps prints."""
        if not self._is_reported and torch.is_grad_enabled():
            self._first_caller = self._first_caller or caller
            self._forwards += caller is self._first_caller
            if self._forwards > _STEPS:
                self._report()

    def close(self) -> None:
        """Stop measuring; print what wasn't yet."""
        self._remove()
        if not self._is_reported:
            self._report()
        elif graphs() > self._reported_graphs:
            self._print(
                "again",
                f"{_graphs(graphs() - self._reported_graphs)} in {self._seconds - self._reported_seconds:.1f} s, as "
                "for batches of another size and for evaluations",
            )

    def _report(self) -> None:
        self._is_reported = True
        self._reported_graphs, self._reported_seconds = graphs(), self._seconds
        count = self._reported_graphs - self._first_graphs
        self._print("compiled", f"{self._subject}: {_graphs(count)} in {self._seconds:.1f} s")

    def _print(self, label: str, text: str) -> None:
        if self._prints:
            print(f"  {label:<{_LABEL_WIDTH}}{text}", file=sys.stderr, flush=True)

    def _start(self, arguments: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, arguments: Any) -> None:
        if self._began is not None:
            self._seconds += time.perf_counter() - self._began
            self._began = None


def _graphs(count: int) -> str:
    return f"{count} graph{'s' * (count != 1)}"
