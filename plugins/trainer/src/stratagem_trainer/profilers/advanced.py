"""`AdvancedProfiler`: show in which functions each hook and phase spends its time."""

from __future__ import annotations

import cProfile
import os
import pstats
from io import StringIO

from stratagem.errors import ConfigError
from stratagem_trainer.profilers.base import Profiler


class AdvancedProfiler(Profiler):
    """Python's cProfile for each action. The time of an action in another one counts only for the inner one.

    Args:
        dirpath: folder of each rank's files; None is the run's folder.
        filename: prefix of their names.
        line_count_restriction: how many functions to show per action: a number, or a fraction (float).
        dump_stats: whether to also write a .prof file per action, for pstats and its viewers.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        line_count_restriction: float = 20,
        dump_stats: bool = False,
    ) -> None:
        super().__init__(dirpath, filename)
        self.line_count_restriction, self.dump_stats = line_count_restriction, dump_stats
        self._profiles: dict[str, cProfile.Profile] = {}
        self._open: list[str] = []

    def begin(self, stage: str, rank: int, run_dir: str | None) -> None:
        super().begin(stage, rank, run_dir)
        self._profiles, self._open = {}, []

    def start(self, action_name: str) -> None:
        if self._open:
            self._profiles[self._open[-1]].disable()
        self._open.append(action_name)
        self._profiles.setdefault(action_name, cProfile.Profile()).enable()

    def stop(self, action_name: str) -> None:
        if not self._open or self._open[-1] != action_name:
            raise ConfigError(
                f"stop({action_name!r}) was called, but the profiler isn't measuring that action now"
            )
        self._profiles[self._open.pop()].disable()
        if self._open:
            self._profiles[self._open[-1]].enable()

    def summary(self) -> str:
        parts = [f"profile of {self._stage}, rank {self._rank}"]
        for name, profile in self._profiles.items():
            if not profile.getstats():
                continue
            text = StringIO()
            stats = pstats.Stats(profile, stream=text).strip_dirs().sort_stats("cumulative")
            stats.print_stats(self.line_count_restriction)
            parts.append(f"{name}\n{text.getvalue().strip()}")
        return "\n\n".join(parts)

    def finish(self) -> None:
        super().finish()
        path = self._path("prof")
        if self.dump_stats and path is not None:
            for name, profile in self._profiles.items():
                if profile.getstats():
                    safe = "".join(letter if letter.isalnum() else "_" for letter in name)
                    profile.dump_stats(f"{path.removesuffix('.prof')}-{safe}.prof")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_profiles": {}, "_open": []}
