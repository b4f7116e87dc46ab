"""The last deferred construction of this thread, until a strategy materializes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

from torch import nn

from stratagem_sharding.deferred_init.deferred import Construction


class _Pending(local):
    construction: Construction | None = None


_PENDING = _Pending()
"""Per thread: ranks may be threads of one process, and each constructs and sets up in its own thread."""


@contextmanager
def deferred() -> Iterator[None]:
    """Create tensors on "meta", and record their construction for `pop_deferred`. A context manager."""
    construction = Construction()
    with construction.recorded():
        yield
    _PENDING.construction = construction


def pop_deferred(root: nn.Module) -> Construction | None:
    """Return the recorded construction of `root` and forget it; None if `root` was constructed as usual.

    Tensor attributes of its modules that are neither parameters nor buffers are materialized now.
    """
    construction = _PENDING.construction
    if construction is None or not construction.made_some_of(root):
        return None
    _PENDING.construction = None
    construction.fill_attributes(root)
    return construction
