"""`DeferringStrategy`: base of strategies whose modules are constructed without memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stratagem import ProcessGroupStrategy
from stratagem_sharding.deferred_init import Construction, deferred, pop_deferred

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DeferringStrategy"]


class DeferringStrategy(ProcessGroupStrategy):
    """Base of strategies of which no rank holds the whole model.

    What `configure_model` makes is on "meta", and written down; `setup` takes the `Construction` and gives
    each tensor its values where they are needed. Takes what `ProcessGroupStrategy` takes.
    """

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """Construct on the "meta" device: tensors get their values later, a few at a time."""
        return deferred()

    def pop_deferred_init(self, original_module: nn.Module) -> Construction | None:
        """Return how `original_module` was constructed, once; None where it was as anywhere.

        Tensors of its modules that are neither parameters nor buffers get their values now.
        """
        return pop_deferred(original_module)
