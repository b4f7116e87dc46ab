"""`ContextSettings`: which modules compute on shards of the sequence, and how attention is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratagem import ConfigError
from stratagem_model_parallel.context.cutting import cut_blocks
from stratagem_model_parallel.context.plan import BUILT_IN, ContextPlan, Plan, blocks_of
from stratagem_model_parallel.context.ranks import SequenceRanks
from stratagem_model_parallel.context.region import ATTENTIONS

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class ContextSettings:
    """Settings that the strategy context_parallel and the axis context share.

    Raises:
        ConfigError: there is no such attention.
    """

    attention: str
    """"ulysses" or "ring"."""
    parallelize: Plan
    """Which modules compute on shards; None for the module's own plan or a built-in one."""
    plans: Sequence[ContextPlan]
    """Plans that take precedence over the built-in ones."""

    def __post_init__(self) -> None:
        if self.attention not in ATTENTIONS:
            raise ConfigError(f"attention={self.attention!r} must be one of {', '.join(ATTENTIONS)}")

    def cut(
        self,
        root: nn.Module,
        mesh: DeviceMesh,
        closing: ExitStack,
        tensor: dist.ProcessGroup | None = None,
        part: Sequence[nn.Module] | None = None,
    ) -> None:
        """Make a module's blocks compute on shards of sequences.

        Args:
            root: the module.
            mesh: with a dimension "context".
            closing: removes the hooks when it is closed.
            tensor: the group of ranks among which layers are split, if any.
            part: the modules that this rank calls, if it has only a part of the module; None for all.
        """
        ranks = SequenceRanks.of(mesh)
        if ranks.size == 1 and not isinstance(self.parallelize, Mapping):
            return
        blocks = blocks_of(root, self.parallelize, (*self.plans, *BUILT_IN), mesh)
        if part is not None:
            own = {module for each in part for module in each.modules()}
            blocks = [block for block in blocks if block.module in own]
        if ranks.size > 1:
            attention = ATTENTIONS[self.attention]
            for handle in cut_blocks(root, blocks, ranks, attention, tensor, is_part=part is not None):
                closing.callback(handle.remove)
