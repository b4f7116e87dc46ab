"""`EndedState`: what `Trainer.state` is while no stage runs."""

from __future__ import annotations

from typing import Any

from stratagem.errors import StratagemError


class EndedState:
    """The name and status of the last stage. Other attributes of a stage's state exist only while it runs.

    Args:
        fn: "fit", "validate", "test" or "predict"; None before the first.
        status: "initializing", "finished" or "interrupted".
    """

    def __init__(self, fn: str | None, status: str) -> None:
        self.fn = self.stage = fn
        self.status = status

    @property
    def finished(self) -> bool:
        """Whether the stage ended without an error."""
        return self.status == "finished"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StratagemError("no stage of this trainer is running")
