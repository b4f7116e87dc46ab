"""`BatchHooks`: the hooks of callbacks and the module around each training batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError
from stratagem_trainer.loops.outputs import seen_by_hooks

if TYPE_CHECKING:
    from stratagem_trainer.stage.hooks import HookRunner


class BatchHooks:
    """Hooks of a batch. A hook that isn't overridden costs nothing in a step.

    Args:
        hooks: of the run.

    Attributes:
        starts: each `on_train_batch_start`.
        after_backward: each `on_after_backward`.
        ends: each `on_train_batch_end`.
        skips_epoch: whether one of `starts` has ended the epoch.
    """

    def __init__(self, hooks: HookRunner) -> None:
        self.starts, self.ends = hooks.of("on_train_batch_start"), hooks.of("on_train_batch_end")
        self.after_backward = hooks.of("on_after_backward")
        self.skips_epoch: bool

    def skips(self, batch: Any, idx: int, first: int) -> bool:
        """Call `on_train_batch_start`; return whether a hook has ended the epoch by returning -1."""
        returned = [start(batch, idx) for start in self.starts]
        self.skips_epoch = -1 in returned
        if self.skips_epoch and idx != first:
            raise ConfigError(
                f"on_train_batch_start returned -1 for batch {idx}, whose gradients are added to those of batch "
                f"{first}: return it for the first batch of a step"
            )
        return self.skips_epoch

    def end(self, outputs: Any, batch: Any, idx: int) -> None:
        """Call `on_train_batch_end`."""
        if self.ends:
            outputs = seen_by_hooks(outputs)
        for end in self.ends:
            end(outputs, batch, idx)
