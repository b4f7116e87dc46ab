"""`LossWeights`: gradients of Σ loss / Σ weight, over all ranks and micro-batches of a step.

A window is all backwards since an optimizer's gradients were dropped or stepped. Each backward runs on the summed
loss times `unit`, and strategies reduce the gradients like any others. A small collective sums the window's weights
over the ranks while its last backward runs. After that backward, gradients are divided by the sum. They are then
complete: your loop can read, clip and step them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stratagem.errors import GradientError
from stratagem.strategies.loss_sum import weight_on
from stratagem.strategies.torch_private import multiply_

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from stratagem.collectives.base import Collectives
    from stratagem.strategies.prepared import Prepared

WAIT_S = 300.0
"""How long a rank waits, at the first weighted loss of a run, for the other ranks to have one, too."""


@dataclass
class _Window:
    """The state of one optimizer's gradients."""

    is_pending: bool = False
    """Whether a backward has added gradients of sums that aren't divided yet."""
    is_mean: bool = False
    """Whether gradients are divided: they are those of a weighted mean."""
    is_empty: bool = True
    """Whether gradients were dropped, or none were ever there."""


class LossWeights:
    """Weights of the losses of one prepared module, by optimizer.

    Each optimizer has its own window, because it may step and drop its gradients while others go on. The last window
    is for parameters that no optimizer of `setup` has.

    Args:
        prepared: the module and optimizers whose gradients are divided.
        data: the ranks that read different batches.

    Attributes:
        is_used: whether losses have weights. True from the run's first loss with a weight on; every later loss then
            needs one.
        is_last: whether the next backward is the last of its window, so that gradients are completed after it.
        unit: factor of losses that makes gradients about as large as those of a mean until they are divided. Without
            it, gradients of a sum over a thousand tokens overflow in float16. It is a power of two, because that
            rounds nothing, and near 1 / (a rank's mean weight at the first loss).
        watches_steps: whether your own loop calls `step` of the optimizers, so that only optimizer hooks notice
            steps.
    """

    def __init__(self, prepared: Prepared, data: Collectives) -> None:
        self._prepared, self._data = prepared, data
        self.is_used, self.is_last, self.watches_steps = False, True, False
        self.unit, self._has_unit = 1.0, False
        self._windows: list[_Window] = []
        self._own = self._total = torch.zeros(0)
        """By window: this rank's weights that aren't summed over ranks yet, and the total weight of all losses in the
        gradients."""
        self._reduced: torch.Tensor | None = None
        self._work: Any = None
        self._handles: list[RemovableHandle] = []

    @property
    def is_pending(self) -> bool:
        """Whether gradients hold sums that aren't divided yet."""
        return any(window.is_pending for window in self._windows)

    # Per backward -------------------------------------------------------------------------------

    def add(
        self, weight: torch.Tensor | float | None, has_loss: bool = True, *, is_done: bool = False
    ) -> float:
        """Note the weight of a loss, before its backward. Call it on a rank without a loss, too.

        Args:
            weight: the weight of the loss; None if there is no loss.
            has_loss: whether there is a loss.
            is_done: whether its backward has run already, with the loss times `unit`.

        Returns:
            The factor by which to multiply the loss before its backward.

        Raises:
            CombinationError: the strategy can't divide by weights.
            DataError: the weight isn't a number of at least 0.
            GradientError: this loss has no weight while others have, or there are gradients of a loss without one.
        """
        if weight is None and has_loss:
            raise GradientError(
                "this loss has no weight, and others of this run have one: give each loss its weight, 0 where a "
                "batch has nothing to learn from"
            )
        if not self.is_used:
            assert weight is not None
            self._begin(weight, is_done)
        if not all(window.is_pending for window in self._windows):
            for index, gradients in enumerate(self._gradients()):
                self._open(index, gradients)
        if weight is not None:
            self._own += weight_on(weight, self._own.device)
        if self.is_last:
            self._reduce()
        return self.unit

    def complete(self) -> None:
        """Divide gradients by their weights, after the last backward of a window. Collective among the data ranks."""
        if self._reduced is None:  # no loss of this window came to `add`
            self.add(None, has_loss=False)
        reduced, self._reduced = self._reduced, None
        assert reduced is not None
        if self._work is not None:
            self._work.wait()
            self._work = None
        self._total = self._total + reduced
        ranks = self._prepared.averaged_ranks()
        # If all weights are 0, there was nothing to learn from: make gradients zeros instead of dividing by 0.
        factors = torch.where(self._total > 0, ranks / (self._total * self.unit), 0.0)
        for factor, window, gradients in zip(factors, self._windows, self._gradients()):
            multiply_(gradients, factor)
            window.is_pending, window.is_mean = False, True
        if not self._has_unit:
            self._choose_unit(self._total.max())

    def _choose_unit(self, total: torch.Tensor) -> None:
        # `float` waits for the device, but only once in a run.
        weight = float(total)
        if weight > 0:
            self._has_unit, self.unit = True, 2.0 ** round(math.log2(self._data.world_size / weight))

    # When gradients are dropped or stepped --------------------------------------------------------

    def drop(self, index: int) -> None:
        """Note that gradients of optimizer `index` were dropped, or filled with zeros."""
        if self._windows:
            self._end(index, is_empty=True)

    def note_step(self, index: int) -> None:
        """Note that optimizer `index` has stepped. A new window begins."""
        if self._windows:
            self._end(index, is_empty=False)

    def mean(self, loss: Any, index: int) -> Any:
        """Return the weighted mean loss over ranks. Call it after the window is complete.

        Args:
            loss: the mean over ranks of their summed losses, a number or a tensor.
            index: of the optimizer whose window it is.
        """
        if isinstance(loss, torch.Tensor):
            loss = loss.detach()
        total = self._total[index].to(loss.device if isinstance(loss, torch.Tensor) else "cpu")
        return torch.where(total > 0, loss * self._data.world_size / total, 0.0)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs so that a resumed run overflows in the same steps."""
        return {"unit": self.unit} if self._has_unit else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        if state:
            self.unit, self._has_unit = float(state["unit"]), True

    def release(self) -> None:
        """Remove the hooks from the user's optimizers."""
        while self._handles:
            self._handles.pop().remove()

    # --------------------------------------------------------------------------------------------

    def _begin(self, weight: torch.Tensor | float, is_done: bool) -> None:
        """Require weights of all losses from now on. Collective; `all_arrive` detects ranks that don't take part."""
        self._prepared.averaged_ranks()  # raises if the strategy can't divide by weights
        if not self._data.all_arrive("the first loss with a weight", WAIT_S):
            raise GradientError(
                f"rank {self._data.rank} has a loss with a weight, and another rank has none: give each loss its "
                "weight on every rank, 0 where a batch has nothing to learn from"
            )
        count = len(self._prepared.optimizers) + 1
        self._windows = [_Window() for _ in range(count)]
        device = self._prepared.device
        self._own = torch.zeros(count, dtype=weight_on(0, device).dtype, device=device)
        self._total = self._own.clone()
        if not self._has_unit and not is_done:
            self._choose_unit(self._data.all_reduce(weight_on(weight, device), "sum"))
        self.is_used = True
        if self.watches_steps:
            self._handles = [
                optimizer.register_step_post_hook(lambda *_, index=index: self.note_step(index))
                for index, optimizer in enumerate(self._prepared.optimizers)
            ]

    def _open(self, index: int, gradients: Sequence[torch.Tensor]) -> None:
        """Prepare a window for a backward that adds to its gradients."""
        window = self._windows[index]
        if window.is_pending:
            return
        if not gradients:
            # They were dropped, perhaps by `parameter.grad = None`, or earlier backwards didn't reach these
            # parameters. Weights of such backwards don't count.
            self._end(index, is_empty=True)
            if self._prepared.shows_unreduced_gradients:
                # Whether this backward reaches the parameters is seen before the next one.
                return
            window = self._windows[index]
        elif window.is_mean:
            # Multiply the means by their weight again, so that the next backward can add its sums.
            multiply_(gradients, self._total[index] * (self.unit / self._prepared.averaged_ranks()))
            window.is_mean = False
        elif not window.is_empty and any(bool(gradient.count_nonzero()) for gradient in gradients):
            raise GradientError(
                "a loss with a weight is taken backward, and there are gradients of another step or of a loss "
                "without a weight: call optimizer.zero_grad() before it"
            )
        window.is_pending = True

    def _end(self, index: int, *, is_empty: bool) -> None:
        self._windows[index] = _Window(is_empty=is_empty)
        self._own[index] = self._total[index] = 0

    def _reduce(self) -> None:
        """Begin to sum the ranks' weights. `complete` waits for the result."""
        reduced = self._own.clone()
        self._own.zero_()
        group = self._data.process_group
        if self._data.world_size > 1 and group is None:
            reduced = self._data.all_reduce(reduced, "sum")
        elif self._data.world_size > 1:
            self._work = dist.all_reduce(reduced, group=group, async_op=True)
        self._reduced = reduced

    def _gradients(self) -> list[list[torch.Tensor]]:
        """Return gradients by window: those of each optimizer, and those of the module's other parameters."""
        found, seen = [], set()
        modules = self._prepared.original_module.parameters()
        groups = [
            [p for group in each.param_groups for p in group["params"]] for each in self._prepared.optimizers
        ]
        for parameters in (*groups, modules):
            gradients = []
            for parameter in parameters:
                if id(parameter) not in seen and parameter.grad is not None:
                    gradients.append(_local(parameter.grad))
                seen.add(id(parameter))
            found.append(gradients)
        return found


def _local(gradient: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, or an ordinary tensor as it is. The result shares its memory."""
    to_local = getattr(gradient, "to_local", None)
    local: torch.Tensor = gradient if to_local is None else to_local()
    return local.detach()


def weighted_backward(
    prepared: Prepared,
    everything: Sequence[Prepared],
    loss: torch.Tensor,
    weight: torch.Tensor | float | None,
    **kwargs: Any,
) -> None:
    """Run backward of a loss with a weight, and complete gradients after the last backward of a window. Collective.

    Args:
        prepared: runs the backward.
        everything: all modules that were set up, because the loss may reach parameters of each.
        loss: a sum.
        weight: the loss's weight.
        kwargs: as of `Prepared.backward`.
    """
    all_weights = [each.loss_weights for each in everything]
    # A loss has one factor, so all modules need the same unit. Where nothing is pending, gradients are means, which
    # don't depend on the unit.
    unit = next((each.unit for each in all_weights if each.is_pending), all_weights[0].unit)
    factors = []
    for each in all_weights:
        each.unit = unit
        factors.append(each.add(weight))
    prepared.backward(loss * factors[everything.index(prepared)], **kwargs)
    for each in all_weights:
        if each.is_last:
            each.complete()


@contextmanager
def accumulating(weights: LossWeights) -> Iterator[None]:
    """While active, backwards aren't the last of their window."""
    before, weights.is_last = weights.is_last, False
    try:
        yield
    finally:
        weights.is_last = before
