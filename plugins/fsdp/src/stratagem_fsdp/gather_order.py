"""`GatherOrder`: ends a run whose ranks gather different units, before they compute with wrong parameters.

An all-gather doesn't say which unit it is for. If one rank calls expert 0 and another expert 1, each gets half of
both, and neither torch nor the backend reports an error. So each rank compares the unit that it is about to gather
with the one that it gathered at this position the last time. If they are the same, as nearly always, it doesn't
communicate. If they differ, the rank waits for all others to reach the same position with the same unit. If all
do, the order has changed everywhere; if not, the run ends. A rank whose order differs from before always notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from stratagem import CombinationError
from stratagem.sdk.shards import number_of
from stratagem_fsdp.eager import eager
from stratagem_fsdp.reduce_order import ReduceOrder
from stratagem_fsdp.torch_private import is_in_backward

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.utils.hooks import RemovableHandle

    from stratagem import Collectives

WAIT_S = 20.0
"""How long other ranks may take to reach a block: they compute whatever is between two blocks."""
BACKWARD = "backward()"
"""Marks a backward within a step in the list of units' names."""
FIRST_WAIT_S = 120.0
"""How long other ranks may take to reach the first block, if no root was gathered before: they may wait for data."""


class GatherOrder:
    """Compares the order of gathered units with the other ranks' order, whenever it changes.

    Args:
        units: modules that are gathered separately.
        root: the unit that each step calls, if there is one.
        original_module: the user's module, whose names messages use.
        collectives: all ranks of the run.
        strategy: name of the strategy, for messages.
    """

    def __init__(
        self,
        units: Sequence[FSDPModule],
        root: FSDPModule | None,
        original_module: nn.Module,
        collectives: Collectives,
        strategy: str,
    ) -> None:
        self._collectives, self._strategy = collectives, strategy
        self._before: list[str] = []
        self._now: list[str] = []
        self._trained: tuple[bool, ...] = ()
        self.history = 0
        """A hash of all orders so far, and of which parameters got gradients."""
        self._handles: list[RemovableHandle] = []
        self._reduced = ReduceOrder(units, original_module, collectives, strategy)
        if collectives.world_size == 1:
            return
        names = {module: name for name, module in original_module.named_modules()}
        inner = [unit for unit in units if unit is not root]
        shared = {id(each) for unit in inner for each in _parameters(unit)}
        follows_root = root is not None and any(id(each) not in shared for each in _parameters(root))
        self._first_wait_s = WAIT_S if follows_root else FIRST_WAIT_S
        for unit in inner:
            assert isinstance(unit, nn.Module)
            hook = partial(self._about_to_gather, names.get(unit, type(unit).__name__))
            # Before torch's hook, which gathers.
            self._handles.append(unit.register_forward_pre_hook(eager(hook), prepend=True))

    def end_forward(self, without_loss: bool = False) -> None:
        """Record that the outermost forward has returned.

        Args:
            without_loss: it was a training step that returned None. `expect_none_everywhere` then asks all ranks.

        Raises:
            CombinationError: this rank has gathered fewer units than before, and others more.
        """
        if without_loss and len(self._now) < len(self._before):
            self._now = []
            return
        if len(self._now) < len(self._before):
            self._ask("")
        if self._now != self._before:
            self._before = self._now
            self.history = number_of([self.history, self._before])
        self._now = []

    def abandon_forward(self) -> None:
        """Forget the units gathered since the last `end_forward`, after an exception in the forward."""
        self._now = []

    def begin_backward(self) -> None:
        """Record a backward that the module runs itself, between two forwards of one step.

        A backward gathers units, too. Without this comparison, a rank that calls fewer units before it would wait
        for mismatched gathers until the process group's timeout.

        Raises:
            CombinationError: other ranks gather a unit instead.
        """
        if self._collectives.world_size > 1:
            self._about_to_gather(BACKWARD)

    def end_backward(self, parameters: Sequence[nn.Parameter]) -> None:
        """Record which of `parameters` have gradients after the reduction.

        A reduction also matches by position: ranks that use different parameters of a unit would add up gradients of
        different parameters.
        """
        trained = tuple([parameter.grad is not None for parameter in parameters])
        if trained != self._trained:
            self._trained = trained
            self.history = number_of([self.history, trained])

    def release(self) -> None:
        """Remove the hooks."""
        self._reduced.release()
        for handle in self._handles:
            handle.remove()

    def _about_to_gather(self, name: str, *_: Any) -> None:
        if is_in_backward():  # activation checkpointing, which follows backward's order
            return
        at = len(self._now)
        if at >= len(self._before) or self._before[at] != name:
            self._ask(name)
        self._now.append(name)

    def _ask(self, name: str) -> None:
        at = len(self._now)
        if self._collectives.all_arrive(f"gather {at} {name}", WAIT_S if at else self._first_wait_s):
            return
        usual = f" (before: {self._before[at]!r})" if at < len(self._before) else ""
        called = at - self._now.count(BACKWARD)
        if name == BACKWARD:
            came = f"runs a backward after {called} sharded blocks of a step"
        elif name:
            came = f"calls {name!r} as sharded block {called + 1} of a step"
        else:
            came = f"calls {called} sharded blocks in a step"
        raise CombinationError(
            f"rank {self._collectives.rank} {came}{usual}, and other ranks don't: under {self._strategy} all ranks "
            "call the same blocks in the same order, which a mixture of experts doesn't where each rank's samples "
            "choose. Call every expert on every rank, with an empty batch where it has no samples, or choose ddp "
            "with find_unused_parameters=True"
        )


def _parameters(unit: FSDPModule) -> list[nn.Parameter]:
    assert isinstance(unit, nn.Module)
    return list(unit.parameters())
