"""What was constructed last in a thread, until a strategy gives it its values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

from torch import nn

from stratagem_sharding.deferred_init.deferred import Construction


class _Pending(local):
    construction: Construction | None = None


_PENDING = _Pending()
"""A rank constructs and sets up in one thread, and ranks may be threads of one process."""


@contextmanager
def deferred() -> Iterator[None]:
    """Around a construction: tensors are made on "meta", and recorded for `pop_deferred`."""
    construction = Construction()
    with construction.recorded():
        yield
    _PENDING.construction = construction


def pop_deferred(root: nn.Module) -> Construction | None:
    """Return in what `root` was constructed last in this thread, once; None where it was as anywhere.

    Tensors of its modules that are neither parameters nor buffers get their values now.
    """
    construction = _PENDING.construction
    if construction is None or not construction.made_some_of(root):
        return None
    _PENDING.construction = None
    construction.fill_attributes(root)
    return construction
