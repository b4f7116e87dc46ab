"""`DeferringStrategy`: base class of strategies that construct modules without memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stratagem import ProcessGroupStrategy
from stratagem_sharding.deferred_init import Construction, deferred, pop_deferred

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DeferringStrategy"]


class DeferringStrategy(ProcessGroupStrategy):
    """Base class of strategies under which no rank holds the whole model.

    `configure_model` creates tensors on "meta", and their construction is recorded. `setup` takes the `Construction`
    and materializes each tensor where it is needed. The options are those of `ProcessGroupStrategy`.
    """

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """Construct on the "meta" device. Tensors are materialized later, a few at a time."""
        return deferred()

    def pop_deferred_init(self, original_module: nn.Module) -> Construction | None:
        """Return the recorded construction of `original_module` and forget it; None if it was constructed as usual.

        Tensor attributes of its modules that are neither parameters nor buffers are materialized now.
        """
        return pop_deferred(original_module)
