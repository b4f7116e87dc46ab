"""`GatherOrder`: ends a run whose ranks gather other units, before they compute with each other's parameters.

All-gathers carry no name: where one rank calls expert 0 and another expert 1, each gets half of either, and
neither torch nor the backend says a word. So each unit that is about to be gathered is compared with what this
rank gathered there the last time. As long as that is the same, as nearly always, nothing is asked. Where it
isn't, a rank waits for the others to come to the same place with the same unit: if they all do, the order has
changed everywhere; if not, the run ends. A rank that goes another way than all others so far is always one
that notices.
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
"""How long others may take to come to a block: they compute what is between two of them."""
BACKWARD = "backward()"
"""Stands among the names of units for a backward within a step."""
FIRST_WAIT_S = 120.0
"""How long to the first one, where nothing was gathered right before: they may be waiting for data."""


class GatherOrder:
    """Compares the order in which units are gathered with the other ranks' order whenever it has changed.

    Args:
        units: modules that are gathered separately.
        root: the one among them that each step calls, if there is one.
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
        """A number of all orders so far, and of which parameters got gradients."""
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
            # Before torch's, which gathers.
            self._handles.append(unit.register_forward_pre_hook(eager(hook), prepend=True))

    def end_forward(self, without_loss: bool = False) -> None:
        """Note that the outermost call has returned.

        Args:
            without_loss: it was a training step's, and returned None: all ranks' must have, and will be asked.

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
        """Forget what was gathered since the last `end_forward`: an exception has ended the forward."""
        self._now = []

    def begin_backward(self) -> None:
        """Note a backward that the module runs itself, between two forwards of one step.

        A backward gathers units, too. Were it not compared, a rank that calls fewer units before it would wait for
        other gathers than the rest until the process group's timeout.

        Raises:
            CombinationError: other ranks gather a unit instead.
        """
        if self._collectives.world_size > 1:
            self._about_to_gather(BACKWARD)

    def end_backward(self, parameters: Sequence[nn.Parameter]) -> None:
        """Note which of `parameters` have gradients, once the ranks' have been reduced.

        A reduction goes by position, too: ranks that use different parameters of one unit reduce one's gradient
        with another's.
        """
        trained = tuple([parameter.grad is not None for parameter in parameters])
        if trained != self._trained:
            self._trained = trained
            self.history = number_of([self.history, trained])

    def release(self) -> None:
        """Take the hooks off."""
        self._reduced.release()
        for handle in self._handles:
            handle.remove()

    def _about_to_gather(self, name: str, *_: Any) -> None:
        if is_in_backward():  # activations are computed again, in backward's order
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
