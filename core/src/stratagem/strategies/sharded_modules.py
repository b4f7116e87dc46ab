"""Modules of which a run left only this process's shards, until a later run restores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stratagem.errors import CombinationError

if TYPE_CHECKING:
    from torch import nn

    from stratagem.collectives.base import Collectives
    from stratagem.strategies.base import Strategy


@dataclass(frozen=True)
class LeftSharded:
    """The shards that a run left of a module."""

    strategy: str
    """The strategy's name, for messages."""
    world_size: int
    """Number of processes, each of which has a shard."""
    rank: int
    """This process's rank among them."""
    shards: object
    """`Prepared.left_shards`; None if no run can restore the module."""


_LEFT: WeakKeyDictionary[nn.Module, LeftSharded] = WeakKeyDictionary()


def leave_sharded(module: nn.Module, left: LeftSharded) -> None:
    """Remember that this process has only shards of `module`."""
    _LEFT[module] = left


def forget_shards(module: nn.Module) -> None:
    """Forget the shards of `module`, because a strategy has set it up again."""
    _LEFT.pop(module, None)


def shards_for(module: nn.Module, strategy: Strategy, collectives: Collectives) -> object | None:
    """Return the shards from which `strategy` sets `module` up again; None for a module that is whole.

    Raises:
        CombinationError: this strategy can't use the shards, or this process had another rank or world size.
    """
    left = _LEFT.get(module)
    if left is None:
        return None
    same_place = (left.world_size, left.rank) == (collectives.world_size, collectives.rank)
    if same_place and left.shards is not None and strategy.can_restore(left.shards):
        return left.shards
    now = "this strategy" if same_place else f"{collectives.world_size} processes in another order or number"
    raise CombinationError(
        f"this {type(module).__name__} is sharded since the run before, under strategy {left.strategy!r} in "
        f"{left.world_size} processes, and {now} can't set it up again: keep to that strategy and number of "
        "processes, or make a new module and load the checkpoint of that run, as in "
        "trainer.validate(Net(), loader, ckpt_path=...)"
    )
