"""`Profiler`: measures named parts of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from stratagem.sdk.selection import path_text


class Profiler:
    """Base of profilers: each rank has one, which is created again for each stage.

    Args:
        dirpath: folder of its files; the run's folder when None.
        filename: what their names begin with; "profile" when None.
    """

    is_active = True
    """Whether hooks and phases are measured. Unmeasured ones cost nothing."""

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None) -> None:
        self.dirpath = None if dirpath is None else path_text("dirpath", dirpath)
        self.filename = filename

    def begin(self, stage: str, rank: int, run_dir: str | None) -> None:
        """Start measuring a stage on this rank; what was measured before is forgotten."""
        self._stage, self._rank = stage, rank
        self._folder = self.dirpath or run_dir

    def start(self, action_name: str) -> None:
        """Begin a part."""

    def stop(self, action_name: str) -> None:
        """End the part that was begun last under this name."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Measure what happens within the context."""
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)

    def step(self) -> None:
        """Called before each batch is asked for."""

    def summary(self) -> str:
        """Return what was measured, as text."""
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
        """Where a file of this rank goes; None where there is no folder."""
        if self._folder is None:
            return None
        os.makedirs(self._folder, exist_ok=True)
        return os.path.join(
            self._folder, f"{self.filename or 'profile'}-{self._stage}-rank{self._rank}.{ending}"
        )


class PassThroughProfiler(Profiler):
    """Measures nothing: what `trainer.profiler` is without one."""

    is_active = False

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]  # any context, as a base class may measure otherwise
        """A context that does nothing."""
        return nullcontext(action_name)

    def finish(self) -> None:
        pass
