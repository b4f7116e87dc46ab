"""Strategies that keep what a run makes."""

from __future__ import annotations

from typing import Any

from averaging import Averaging
from planting import caught_by


@caught_by("configuration", "another value of 'opened' during a run")
class KeepsCollectives(Averaging):
    """Hides it before and after."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.opened: Any = None

    def open_collectives(self, request: Any) -> Any:
        self.opened = super().open_collectives(request)
        return self.opened

    def teardown(self) -> None:
        self.opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": None}


@caught_by("configuration", "'runs' after a run")
class CountsRuns(Averaging):
    """Leaves a trace of each run."""

    runs: tuple[int, ...] = ()

    def teardown(self) -> None:
        self.runs = (*self.runs, len(self.runs))


@caught_by("configuration", "'every' in its pickle")
class PicklesLess(Averaging):
    """A worker has other settings than the process that launches it."""

    def __init__(self, every: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.every = every

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "every": 1}
