"""`Profiler`: measures named actions of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from stratagem.sdk.selection import path_text


class Profiler:
    """Base class of profilers. Each rank has a profiler, which begins again with each stage.

    Args:
        dirpath: folder of its files; None is the run's folder.
        filename: prefix of their names; None is "profile".
    """

    is_active = True
    """Whether hooks and phases are measured. If not, they cost nothing."""

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None) -> None:
        self.dirpath = None if dirpath is None else path_text("dirpath", dirpath)
        self.filename = filename

    def begin(self, stage: str, rank: int, run_dir: str | None) -> None:
        """Start measuring a stage on this rank, and discard earlier measurements."""
        self._stage, self._rank = stage, rank
        self._folder = self.dirpath or run_dir

    def start(self, action_name: str) -> None:
        """Begin an action."""

    def stop(self, action_name: str) -> None:
        """End the action that was begun last under this name."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Measure an action. A context manager."""
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)

    def step(self) -> None:
        """Called before each batch is requested."""

    def summary(self) -> str:
        """Return the measurements as text."""
        return ""

    def finish(self) -> None:
        """End the stage: write this rank's files, and print rank 0's summary."""
        text = self.summary()
        path = self._path("txt")
        if path is not None and text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        if self._rank == 0 and text:
            print(text, file=sys.stderr, flush=True)

    def _path(self, ending: str) -> str | None:
        """Return the path of a file of this rank; None if there is no folder."""
        if self._folder is None:
            return None
        os.makedirs(self._folder, exist_ok=True)
        return os.path.join(
            self._folder, f"{self.filename or 'profile'}-{self._stage}-rank{self._rank}.{ending}"
        )


class PassThroughProfiler(Profiler):
    """Measures nothing. It is `trainer.profiler` if you choose none."""

    is_active = False

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]  # any context, as a base class may measure otherwise
        """Return a context that does nothing."""
        return nullcontext(action_name)

    def finish(self) -> None:
        pass
