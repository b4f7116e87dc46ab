"""`EndedState`: what is left of a stage where none runs."""

from __future__ import annotations

from typing import Any

from stratagem.errors import StratagemError


class EndedState:
    """How the last stage ended; all else belongs to a running one.

    Args:
        fn: "fit", "validate", "test" or "predict"; None before the first.
        status: "initializing", "finished" or "interrupted".
    """

    def __init__(self, fn: str | None, status: str) -> None:
        self.fn = self.stage = fn
        self.status = status

    @property
    def finished(self) -> bool:
        """Whether it ended without an error."""
        return self.status == "finished"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StratagemError("no stage of this trainer runs now")
