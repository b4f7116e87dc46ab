"""`HorovodCollectives`: what ranks of a run with Horovod talk through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem import Collectives, CollectivesWrapper

if TYPE_CHECKING:
    from stratagem_horovod.engine import Engine


class HorovodCollectives(CollectivesWrapper):
    """A process group, and Horovod among the same ranks.

    Args:
        inner: the process group.
        engine: Horovod, started.
    """

    def __init__(self, inner: Collectives, engine: Engine) -> None:
        super().__init__(inner)
        self.engine = engine
