"""`GradientTracker`: tracks which gradients of a replica are averaged over ranks, and which are local to a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stratagem.errors import GradientError
from stratagem.sdk.shards import fingerprint
from stratagem.sdk.torch_private import tensor_version
from stratagem_sharding.buckets import flattened_buckets, gradients_of_any
from stratagem_sharding.torch_private import at_end_of_backward, backward_number, post_accumulate_hooks

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from stratagem_sharding.exchange import StoreExchange

__all__ = ["GradientTracker", "on_gradient"]

WAIT_S = 60.0
"""How long a rank with local gradients to average waits for the other ranks to reach the same step."""
_ACCUMULATED = "_stratagem_accumulated"
"""Attribute set on gradients that autograd accumulated. A gradient that the user's code assigned lacks it."""


class GradientTracker:
    """Notices what autograd adds to gradients, and averages over ranks what no reduction has averaged.

    Averaging a gradient again doesn't change the part that is equal on all ranks. One more average therefore always
    completes what autograd accumulated, whatever reductions came before. A gradient that the user's code assigned, or
    changed before it was averaged, may not be a sum over batches. It must be equal on all ranks already, even if a
    backward has added to it since.

    Args:
        named: all parameters of the replica, frozen ones too.
        exchange: short messages between the same ranks.
        device: device of the messages.
        is_reduced: returns whether a reducer has finished the reduction that `expect_reduction` announced.
        completes_at_end: returns whether the end of a backward for which no reduction was prepared averages the
            gradients, so that a loop may read them. It returns False within `no_sync`, and if the caller averages.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        exchange: StoreExchange,
        device: torch.device,
        is_reduced: Callable[[], bool] | None = None,
        completes_at_end: Callable[[], bool] = lambda: False,
    ) -> None:
        self._names: dict[Any, str] = {}
        self._exchange, self._device, self._is_reduced = exchange, device, is_reduced
        self._completes_at_end = completes_at_end
        self._local: dict[torch.Tensor, int] = {}
        self._changed: set[torch.Tensor] = set()
        self._assigned: dict[torch.Tensor, torch.Tensor] = {}
        """For parameters whose gradient was assigned before a backward added to it: fingerprint of that gradient."""
        self._reducing: set[torch.Tensor] = set()
        self.expects_reduction = self._has_looked = False
        """The first flag: a forward has prepared a reduction that isn't known to be finished."""
        self._backward = self._completing = -1
        self._completions = 0
        self._averaged: dict[torch.Tensor, int] = {}
        """Versions of averaged gradients. The user's code may change them if it does so equally on all ranks."""
        self.changes = torch.zeros(1, dtype=torch.int64, device=device)
        """A fingerprint, over all steps so far, of the gradients that were changed after they were averaged."""
        self._handles: list[Any] = []
        self.add(named)

    def add(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Track parameters that were added to the replica later. Gradients of untracked parameters are refused."""
        for name, parameter in named:
            if parameter in self._names:
                continue
            self._names[parameter] = name
            if parameter.is_floating_point() or parameter.is_complex():
                self._handles.append(on_gradient(parameter, self._note))

    # While gradients are made -----------------------------------------------------------------------

    def expect_reduction(self) -> None:
        """Note that a forward has prepared a reduction of what the next backward accumulates."""
        self._settle()
        self._reducing.clear()
        self.expects_reduction = True

    def before_backward(self) -> None:
        """Note which gradients the user's code has assigned, before the next backward adds to them.

        Without this call the first hook of the backward does it, when one gradient has been added to already.
        """
        self._has_looked = True
        for parameter in self._names:
            gradient = parameter.grad
            if gradient is None:
                self._assigned.pop(parameter, None)
            elif not hasattr(gradient, _ACCUMULATED):
                self._assigned[parameter] = fingerprint([gradient], self._device)
                setattr(gradient, _ACCUMULATED, True)

    def note_average(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that the current gradients of `parameters` were averaged over ranks."""
        self._changed.clear()
        for parameter in parameters:
            self._local.pop(parameter, None)
            self._reducing.discard(parameter)
            if parameter.grad is not None:
                self._note_averaged(parameter, parameter.grad)

    def _note_averaged(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        setattr(gradient, _ACCUMULATED, True)
        self._averaged[parameter] = tensor_version(gradient)

    def is_local(self, parameter: torch.Tensor) -> bool:
        """Whether autograd has added to the parameter's gradient since the last average."""
        return parameter in self._local

    def is_interrupted(self) -> bool:
        """Whether a reduction has started but not finished: a backward raised, or didn't reach all parameters."""
        self._settle()
        return bool(self._reducing)

    def abandon_reduction(self) -> bool:
        """Treat the gradients of an unfinished reduction as local to this rank; return whether there was one."""
        self._settle()
        was_reducing = bool(self._reducing)
        for parameter in self._reducing:
            if parameter.grad is not None:
                self._local[parameter] = tensor_version(parameter.grad)
        self._reducing.clear()
        self.expects_reduction = False
        return was_reducing

    def _note(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        number = backward_number()
        if number != self._backward:
            self._settle()
            self._backward = number
            if not self._has_looked:
                setattr(gradient, _ACCUMULATED, True)  # its own completeness is no longer known
                self.before_backward()
            self._has_looked = False
        if self._local:
            self._look_for_change(parameter, gradient)
        if self.expects_reduction:
            self._reducing.add(parameter)
        else:
            self._local[parameter] = tensor_version(gradient)
            if number != self._completing and self._completes_at_end():
                self._completing = number
                at_end_of_backward(self.complete_backward)
        setattr(gradient, _ACCUMULATED, True)

    def _look_for_change(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Note if the user's code changed a gradient before autograd added to it: it isn't a sum over batches."""
        before = self._local.get(parameter)
        if len(post_accumulate_hooks(parameter) or ()) > 1:
            return  # a user's hook, which may scale what each backward has added
        # Views of one bucket count their changes together.
        is_view = gradient.untyped_storage().nbytes() != gradient.nbytes
        if before is not None and not is_view and tensor_version(gradient) > before + 1:
            self._changed.add(parameter)

    @property
    def has_local(self) -> bool:
        """Whether autograd has added to any gradient since the last average."""
        return bool(self._local or self._changed or self._assigned)

    def forget(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that the gradients of `parameters` were set to None or zeroed."""
        for parameter in parameters:
            self._local.pop(parameter, None)
            self._changed.discard(parameter)
            self._assigned.pop(parameter, None)

    def _settle(self) -> None:
        """Mark the gradients of a finished reduction as averaged."""
        if not self._reducing or self._is_reduced is None or not self._is_reduced():
            return
        self.expects_reduction = False
        for parameter in self._reducing:
            self._local.pop(parameter, None)
        self._reducing.clear()
        for parameter in self._names:
            # A reducer may create gradients that this rank lacked, or replace gradients by views of its buckets.
            gradient = parameter.grad
            if gradient is None or self._local.get(parameter) == tensor_version(gradient):
                continue
            self._local.pop(parameter, None)
            self._note_averaged(parameter, gradient)

    # Before they are used ---------------------------------------------------------------------------

    def complete(self, parameters: Sequence[torch.Tensor], optimizer: str) -> None:
        """Average the gradients of `parameters` that are still local to this rank. Collective.

        Args:
            parameters: the parameters of one optimizer.
            optimizer: the name of the optimizer's class.

        Raises:
            GradientError: a gradient was assigned and differs between ranks, was changed before it was averaged, or
                belongs to a parameter that was added later; or other ranks have no gradients to average.
        """
        self._settle()
        assigned: list[torch.Tensor] = []
        local: list[torch.Tensor] = []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                self.forget([parameter])
                continue
            if not hasattr(gradient, _ACCUMULATED):
                assigned.append(parameter)
            elif parameter in self._local:
                local.append(parameter)
            if parameter not in self._names:
                raise GradientError(
                    f"{optimizer} steps a parameter of shape {tuple(parameter.shape)} that was added after setup(), "
                    "so that its gradient is this rank's own: add layers before setup(), and replace none after it"
                )
        changed = [p for p in parameters if p in self._changed and p.grad is not None]
        if changed:
            raise self._was_changed(changed[0])
        self._note_changes(parameters)
        added_to = [p for p in parameters if p in self._assigned and p.grad is not None]
        if not assigned and not local and not added_to:
            return
        self._meet(optimizer)
        for parameter in local:
            if tensor_version(parameter.grad) != self._local[parameter]:  # type: ignore[arg-type]  # it has one
                raise self._was_changed(parameter)
        self._require_equal(assigned, added_to)
        self._average([parameter in self._local for parameter in parameters], parameters)

    def _note_changes(self, parameters: Sequence[torch.Tensor]) -> None:
        """Add gradients that were changed after their average to the fingerprint that ranks compare."""
        changed = [
            parameter.grad
            for parameter in parameters
            if parameter.grad is not None
            and parameter not in self._local
            and tensor_version(parameter.grad) != self._averaged.get(parameter)
        ]
        if changed:
            self.changes = self.changes * 31 + fingerprint(changed, self._device)

    def _was_changed(self, parameter: torch.Tensor) -> GradientError:
        return GradientError(
            f"the gradient of {self._names[parameter]!r} was changed before it was averaged over the ranks, "
            "as by clipping a gradient from no_sync() or from a backward that isn't reduced: call "
            "runtime.average_gradients(optimizer) first, or clip by runtime.clip(optimizer, ...) "
            "(optimizer.average_gradients() and optimizer.clip(...) in a Module)"
        )

    def refuse_changed(self) -> None:
        """Refuse gradients that were changed before their average.

        A caller that averages gradients itself calls this first.

        Raises:
            GradientError: the user's code has changed a gradient, and a backward has added to it since.
        """
        changed = [parameter for parameter in self._changed if parameter.grad is not None]
        if changed:
            raise self._was_changed(changed[0])

    def complete_backward(self) -> None:
        """Average the gradients of a backward for which no reduction was prepared. Collective.

        A loop may read them before the step, for example to log their norm.
        """
        self._settle()
        if self._local and not self._reducing:
            self._meet("backward")
            self._require_equal([], list(self._assigned))
            parameters = list(self._names)
            self._average([parameter in self._local for parameter in parameters], parameters)

    def complete_late(self, optimizer: Optimizer) -> None:
        """Complete the gradients of an optimizer that `setup` didn't get. Collective.

        Raises:
            GradientError: as for `complete`, or the optimizer steps within a backward.
        """
        if backward_number() != -1:
            raise GradientError(
                f"{type(optimizer).__name__} steps within a backward, where gradients aren't averaged over the ranks "
                "yet: step it after the backward"
            )
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.complete(parameters, type(optimizer).__name__)

    def replicas(self, parameters: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradients of `parameters`, by names for messages."""
        for parameter in parameters:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                yield f"the gradient of {self._names[parameter]!r}", parameter.grad

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Average all gradients of `parameters`, whether or not they are averaged already. Collective."""
        self._settle()
        for parameter in parameters:
            self._assigned.pop(parameter, None)
        self._average([parameter.grad is not None for parameter in parameters], parameters)

    def _average(self, has_one: list[bool], parameters: Sequence[torch.Tensor]) -> None:
        averaged = gradients_of_any(parameters, has_one, self._device)
        for flat in flattened_buckets(averaged):
            dist.all_reduce(flat)
            flat.div_(dist.get_world_size())
        self.note_average(parameters)

    def _meet(self, optimizer: str) -> None:
        """Wait for all ranks. A collective would wait for ever for ranks that have nothing to average."""
        self._completions += 1
        ranks = self._exchange.compare(f"complete/{self._completions}", optimizer, WAIT_S)
        missing = [rank for rank, theirs in enumerate(ranks) if theirs is None]
        if missing:
            raise GradientError(
                f"{optimizer} has gradients on rank {dist.get_rank()} that aren't averaged over the ranks, and rank "
                f"{missing[0]} has none: run the same backwards on all ranks"
            )

    def _require_equal(self, assigned: Iterable[torch.Tensor], added_to: Iterable[torch.Tensor]) -> None:
        """Refuse assigned gradients that differ between ranks, even if a backward has added to them since."""
        before = {parameter: self._assigned.pop(parameter) for parameter in added_to}
        numbers = {p: fingerprint([p.grad], self._device) for p in assigned if p.grad is not None}
        different = self._first_different({**numbers, **before})
        if different in before:
            raise GradientError(
                f"the gradient of {self._names[different]!r} was assigned by your code, differed between ranks, and "
                "a backward was added to it, so that it is neither this rank's own nor an average: call "
                "runtime.average_gradients(optimizer) before that backward (optimizer.average_gradients() in a "
                "Module), or run one backward of the sum of the losses"
            )
        if different is not None:
            raise GradientError(
                f"the gradient of {self._names[different]!r} was assigned by your code "
                "and differs between ranks, as what torch.autograd.grad returns does: if you want its average "
                "over the ranks, call runtime.average_gradients(optimizer) before the step "
                "(optimizer.average_gradients() in a Module), or else compute it by backward(loss)"
            )
        self.note_average(assigned)

    def _first_different(self, numbers: Mapping[torch.Tensor, torch.Tensor]) -> Any:
        """Return the first parameter whose number differs between ranks; None if all are equal. Collective."""
        sent = torch.zeros(len(self._names), dtype=torch.int64, device=self._device)
        for position, parameter in enumerate(self._names):
            if parameter in numbers:
                sent[position] = numbers[parameter]
        gathered = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, sent)
        for each in gathered[1:]:
            different = (each != gathered[0]).nonzero()
            if len(different):
                return list(self._names)[int(different[0])]
        return None

    def release(self) -> None:
        """Release the parameters."""
        for handle in self._handles:
            handle.remove()
        self._local.clear()
        self._changed.clear()
        self._assigned.clear()
        self._averaged.clear()
        self._reducing.clear()


def on_gradient(parameter: nn.Parameter, function: Callable[[nn.Parameter], object]) -> Any:
    """Call `function` after autograd has accumulated a gradient of `parameter`, frozen or not; return the handle."""
    flag = parameter.requires_grad
    parameter.requires_grad_(True)  # torch refuses the hook otherwise
    handle = parameter.register_post_accumulate_grad_hook(function)  # type: ignore[no-untyped-call]  # torch has no types for it
    parameter.requires_grad_(flag)
    return handle
