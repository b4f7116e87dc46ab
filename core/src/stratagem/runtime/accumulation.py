"""`Accumulation`: decides which calls of your own training loop take effect within `Runtime.accumulate`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError, GradientError, UsageError, short
from stratagem.runtime.loaders import EpochLoader
from stratagem.strategies.loss_weights import accumulating
from stratagem.strategies.torch_private import tensor_version

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stratagem.strategies.prepared import Prepared


class Accumulation:
    """Divides the micro-batches of a loop into windows. A window's gradients are the mean of its micro-batches'.

    Attributes:
        sizes: micro-batches per step, as `setup` got them.
        position: the micro-batch's position in its window, from 1; 0 before the first one.
        length: number of micro-batches in this window.
        is_within: whether the loop is in a micro-batch.
    """

    def __init__(self) -> None:
        self.sizes: set[int] = set()
        self.position = self.length = 0
        self.is_within = False
        self._has_backward = False
        """Whether `Runtime.backward` was called in this micro-batch."""
        self._stepped: set[int] = set()
        """Optimizers that stepped in this micro-batch, by id."""
        self._held: dict[int, str] = {}
        """Optimizers whose step was held back in this window, and that haven't stepped since: id → name."""
        self._batch: tuple[int, ...] | None = None
        self._prepared: Sequence[Prepared] = ()
        self._before: list[tuple[int, int] | None] = []
        """Id and version of each gradient at the end of the previous micro-batch; None where there was none."""

    @property
    def is_open(self) -> bool:
        """Whether more micro-batches follow in this window."""
        return self.position < self.length

    @property
    def holds_back(self) -> bool:
        """Whether clipping and steps wait for a later micro-batch."""
        return self.is_within and self.is_open

    @contextmanager
    def micro_batch(self, prepared: Sequence[Prepared], loader: EpochLoader[Any] | None) -> Iterator[None]:
        """Return a context for one micro-batch. See `Runtime.accumulate`.

        Args:
            prepared: everything that was set up.
            loader: a loader whose last batch ends a window; None for none.
        """
        if len(self.sizes) != 1:
            raise ConfigError(
                f"accumulate needs one number of micro-batches, and setup got "
                f"{sorted(self.sizes) or 'no optimizer'}: "
                "call setup(module, optimizer, accumulate=4), with the same number for each module"
            )
        if self.is_within:
            raise UsageError("accumulate was entered within accumulate: one `with` is one micro-batch")
        batch = self._batch_of(loader)
        if not self.is_open:
            left = loader.batches_left if loader is not None else None
            (full,) = self.sizes
            self.position, self.length = 0, full if left is None else min(full, left + 1)
            self._held = {}
        self.position += 1
        self.is_within, self._has_backward, self._batch, self._prepared = True, False, batch, prepared
        self._stepped = set()
        if self.position == 1:
            self._before = self._gradients()
        try:
            with ExitStack() as contexts:
                if self.is_open:
                    for each in prepared:
                        contexts.enter_context(each.no_sync())
                        contexts.enter_context(accumulating(each.loss_weights))
                        for optimizer in each.optimizers:
                            contexts.callback(optimizer.register_step_pre_hook(_refuse_step).remove)
                yield
                self.check()
            if self._held and not self.is_open:
                raise UsageError(
                    f"{next(iter(self._held.values()))}.step was called in this window, and not in its last "
                    f"micro-batch, number {self.length}: call step in each, or drop the gradients there by zero_grad"
                )
        finally:
            self.is_within = False
            self._before = self._gradients()

    def begin_backward(self) -> float:
        """Note a call of `Runtime.backward`. Return the divisor of its loss, which applies if it has no weight."""
        if self.is_within and self._has_backward and self.length > 1:
            if sum(len(each.optimizers) for each in self._prepared) > 1:
                raise UsageError(
                    "backward was called twice in one micro-batch of accumulate, with several optimizers: a loss "
                    "would leave gradients in parameters of another optimizer; add the losses, or divide them and "
                    "call no_sync yourself"
                )
        elif self.is_within:
            if self.position > 1:
                self.check()
            self._has_backward = True
        return self.length if self.is_within else 1

    def drops(self, optimizer: Optimizer) -> bool:
        """Whether `zero_grad` takes effect.

        It does outside of `accumulate`, and after the optimizer's step. Otherwise it does before a window's first
        backward and after its last one, because loops call it at the beginning or at the end.
        """
        if not self.is_within or id(optimizer) in self._stepped:
            return True
        return not self.is_open if self._has_backward else self.position == 1

    def note_drop(self, optimizer: Optimizer) -> None:
        """Note that an optimizer's gradients were dropped."""
        self._held.pop(id(optimizer), None)
        if self.is_within and not self._has_backward:
            self._before = self._gradients()

    def steps(self, optimizer: Optimizer) -> bool:
        """Note a call of an optimizer's `step`. Return whether it takes effect.

        Raises:
            GradientError: as `check`.
        """
        self.check()
        if self.holds_back:
            self._held[id(optimizer)] = type(optimizer).__name__
            return False
        self._held.pop(id(optimizer), None)
        self._stepped.add(id(optimizer))
        return True

    def check(self) -> None:
        """Refuse gradients that anything but `Runtime.backward` has changed.

        Raises:
            GradientError: backward of an undivided loss was run, or the window's gradients were dropped.
        """
        is_checked = self.is_within and self.length > 1 and not self._has_backward and self._before
        if not is_checked or self._gradients() == self._before:
            return
        raise GradientError(
            f"gradients changed in micro-batch {self.position} of {self.length}, and not by runtime.backward, "
            "which divides the loss: within accumulate, call runtime.backward(loss) and the prepared optimizer's "
            "zero_grad(), or divide and call no_sync yourself"
        )

    def unsaved(self, path: object) -> UsageError:
        """Return the error for a checkpoint that would leave gradients out."""
        return UsageError(
            f"save got {str(path)!r} after micro-batch {self.position} of {self.length}, whose gradients no "
            "checkpoint has: save after the step, where runtime.sync_gradients is True"
        )

    def warn_of_open_window(self) -> None:
        """Warn that the run ended before a window did."""
        warnings.warn(
            f"the run ended after micro-batch {self.position} of {self.length}, and no optimizer stepped by the "
            "gradients of this window: pass the loader to accumulate(loader), so that an epoch ends with a step",
            UserWarning,
            stacklevel=3,
        )

    def _batch_of(self, loader: EpochLoader[Any] | None) -> tuple[int, ...] | None:
        if loader is None:
            return None
        if not isinstance(loader, EpochLoader):
            raise ConfigError(
                f"accumulate got loader={short(loader)}: give what runtime.dataloader returned for training"
            )
        batch = (id(loader), loader.epoch, loader.batches_given)
        if batch == self._batch:
            raise UsageError(
                "accumulate(loader) was entered twice for one batch: each batch is one micro-batch; for parts of "
                "a batch, call accumulate() without the loader"
            )
        return batch

    def _gradients(self) -> list[tuple[int, int] | None]:
        gradients = [
            parameter.grad
            for prepared in self._prepared
            for optimizer in prepared.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        return [None if each is None else (id(each), tensor_version(each)) for each in gradients]


def _refuse_step(optimizer: Optimizer, *_: Any) -> None:
    """Refuse a step of the user's optimizer. Only the one that `setup` returned can hold a step back."""
    raise UsageError(
        f"the {type(optimizer).__name__} that setup() got was stepped within accumulate, before the window's last "
        "micro-batch: step the optimizer that setup() returned"
    )
