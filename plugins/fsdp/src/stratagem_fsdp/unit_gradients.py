"""`UnitGradients`: handles gradients of sharded parameters that haven't been reduced into the shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from stratagem_sharding.whole_tensors import KEPT_GRADIENT, on_shards
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from stratagem.errors import CombinationError, GradientError
from stratagem_fsdp.none_losses import reduce_kept_gradients
from stratagem_fsdp.torch_private import (
    drop_gradient,
    gathered_gradients,
    has_gradient,
    has_run,
    has_unfinished_backward,
    is_in_backward,
    reduced_groups,
)

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from stratagem import Collectives

WAIT_S = 60.0
"""How long a rank with gradients to reduce waits for the others to reach the same step."""
_ACCUMULATED = "_stratagem_accumulated"
"""Attribute of gradients that autograd accumulated. Gradients that the user's code assigned lack it."""


class UnitGradients:
    """Reduces or refuses gradients that a backward left on the gathered copies of parameters.

    Autograd accumulates into gathered copies, and `fully_shard` reduces these gradients into the shards that
    optimizers step. Within `no_sync`, they stay on the copies. So do gradients that the user's code assigns
    while a copy is in use.

    Args:
        units: modules that are gathered separately.
        roots: the outermost units.
        original_module: the user's module, whose names messages use.
        collectives: all ranks of the run.
        strategy: name of the strategy, for messages.
        device: of the tensors that collectives send.
    """

    def __init__(
        self,
        units: Sequence[FSDPModule],
        roots: Sequence[FSDPModule],
        original_module: nn.Module,
        collectives: Collectives,
        strategy: str,
        device: torch.device,
    ) -> None:
        self._roots = tuple(roots)
        self._collectives, self._strategy, self._device = collectives, strategy, device
        self._groups = [group for unit in units for group in reduced_groups(unit)]
        self._names: dict[torch.Tensor, str] = {p: name for name, p in original_module.named_parameters()}
        self._lost: dict[torch.Tensor, torch.Tensor] = {}
        self._is_broken = self._is_at_work = False
        for group in self._groups:
            for each in group.fsdp_params:
                setattr(each.sharded_param, KEPT_GRADIENT, _Kept(self, each))

    # Before they are used ---------------------------------------------------------------------------

    def complete(self, parameters: Sequence[torch.Tensor], optimizer: str) -> None:
        """Reduce gradients that were left on gathered copies. Collective.

        Args:
            parameters: of one optimizer.
            optimizer: the name of its class.

        Raises:
            GradientError: a gradient was assigned, belongs to a parameter that was added after setup, or to a
                backward that raised; or other ranks have no gradients to reduce.
        """
        with self._at_work():
            self._complete(parameters, optimizer)

    def _complete(self, parameters: Sequence[torch.Tensor], optimizer: str) -> None:
        self.recover()
        for parameter in parameters:
            gradient, lost = parameter.grad, self._lost.pop(parameter, None)
            if gradient is None:
                continue
            if parameter not in self._names:
                raise GradientError(
                    f"{optimizer} steps a parameter of shape {tuple(parameter.shape)} that was added after setup(), "
                    "so that its gradient is this rank's own: add layers before setup(), and replace none after it"
                )
            if gradient is lost:
                self._lost[parameter] = gradient
                raise GradientError(
                    f"{optimizer} is about to step with what an exception left of a backward: call "
                    "optimizer.zero_grad() where you catch the exception, and run this step's micro-batches again"
                )
            if isinstance(parameter, DTensor) and not isinstance(gradient, DTensor):
                raise self._assigned(parameter)
        kept = self._kept()
        if not kept or self._collectives.world_size == 1:
            self._reduce_assigned(kept)
            return
        for each in kept:
            if _is_assigned(each):
                raise self._assigned(each.sharded_param)
        if not self._collectives.all_arrive("reduce kept gradients", WAIT_S):
            raise GradientError(
                f"{optimizer} has gradients on rank {self._collectives.rank} that aren't averaged over the ranks, "
                "and other ranks have none: run the same backwards on all ranks"
            )
        self._reduce(kept)

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Average the gradients of `parameters` that the user's code assigned. Collective."""
        with self._at_work():
            self._average(parameters)

    def _average(self, parameters: Sequence[torch.Tensor]) -> None:
        self.recover()
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or not isinstance(parameter, DTensor) or isinstance(gradient, DTensor):
                continue
            mean = gradient.detach().clone()
            if self._collectives.world_size > 1:
                dist.all_reduce(mean)
                mean /= self._collectives.world_size
            mesh = parameter.device_mesh
            whole = DTensor.from_local(mean, mesh, [Replicate()] * mesh.ndim, run_check=False)
            parameter.grad = whole.redistribute(placements=parameter.placements)
        self._reduce_assigned(self._kept())

    def reduce_into_grad(self, parameter: Any) -> None:
        """Reduce gradients of backwards within `no_sync`, when the user's code reads one. Collective.

        Raises:
            GradientError: other ranks don't read a gradient.
        """
        if self._is_at_work or is_in_backward() or not has_gradient(parameter):
            return
        if not self._collectives.all_arrive("read a gradient within no_sync", WAIT_S):
            raise GradientError(
                f"the gradient of {self._names.get(parameter.sharded_param, 'a parameter')!r} is read before it has "
                f"been averaged, on rank {self._collectives.rank} and not on all ranks: read it on all ranks, or "
                "after the step's last backward, outside of no_sync()"
            )
        with self._at_work():
            self._reduce(self._kept())

    def replace(self, parameter: Any) -> None:
        """Drop the gradient of backwards within `no_sync`, when the user's code assigns another one."""
        if not self._is_at_work and not is_in_backward() and has_gradient(parameter):
            self._drop([parameter])

    def note_backward(self) -> None:
        """Record that autograd accumulated the current gradients of gathered copies."""
        mark_accumulated(self._kept())

    def drop(self, parameters: Sequence[torch.Tensor]) -> None:
        """Drop the gradients on gathered copies of `parameters`."""
        self.recover()
        kept = self._kept()
        if kept:
            ids = {id(parameter) for parameter in parameters}
            self._drop([each for each in kept if id(each.sharded_param) in ids])

    def _drop(self, kept: Iterable[Any]) -> None:
        # The gathered copy of a parameter split by tensor parallelism is a DTensor: its `.grad` calls
        # `reduce_into_grad`.
        with self._at_work():
            for each in kept:
                drop_gradient(each)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """While active, reads of `.grad` are internal and don't trigger `reduce_into_grad` or `replace`."""
        before, self._is_at_work = self._is_at_work, True
        try:
            yield
        finally:
            self._is_at_work = before

    def _assigned(self, parameter: torch.Tensor) -> GradientError:
        return GradientError(
            f"the gradient of {self._names.get(parameter, 'a parameter')!r} was assigned by your code and is this "
            "rank's own, as what torch.autograd.grad returns is: call runtime.average_gradients(optimizer) before "
            "the step if you want its average over the ranks, or compute it by runtime.backward(loss)"
        )

    def _kept(self) -> list[Any]:
        return [each for group in self._groups for each in group.fsdp_params if has_gradient(each)]

    def _reduce_assigned(self, kept: Sequence[Any]) -> None:
        """Reduce gradients that may have been assigned; refuse one if the shard already has a gradient."""
        for each in kept:
            if each.sharded_param.grad is not None and _is_assigned(each):
                raise GradientError(
                    f"{self._names.get(each.sharded_param, 'a parameter')!r} has a gradient, and got another one "
                    "that isn't runtime.backward's: call optimizer.zero_grad() before you assign gradients, and "
                    "runtime.backward(loss) in place of loss.backward()"
                )
        self._reduce(kept)

    def _reduce(self, kept: Sequence[Any]) -> None:
        ids = {id(each) for each in kept}
        for root in self._roots if kept else ():
            assert isinstance(root, nn.Module)
            below = [group for module in root.modules() for group in _groups_of(module)]
            if not any(id(each) in ids for group in below for each in group.fsdp_params):
                continue
            reduces = below[0].reduce_grads
            root.set_requires_gradient_sync(True)  # since the step may be within no_sync
            reduce_kept_gradients(root)
            root.set_requires_gradient_sync(reduces)

    # After an exception -----------------------------------------------------------------------------

    def recover(self) -> None:
        """Prepare for the next forward, after an exception in a backward that the loop has caught.

        Raises:
            CombinationError: this version of torch can't continue after an exception.
        """
        if self._is_broken:
            raise CombinationError(
                f"an exception ended a forward or a backward under {self._strategy}, and torch {torch.__version__} "
                "can't continue after it: use torch 2.13 or later, or let the exception end the run"
            )
        if not is_in_backward() and any(map(has_unfinished_backward, self._roots)):
            self.abandon(in_backward=True)

    @on_shards()  # an exception may be this rank's alone, so nothing here may wait for other ranks
    def abandon(self, in_backward: bool) -> None:
        """Give up the forward or backward that raised an exception. Not collective."""
        kept = self._kept()
        for root in self._roots:
            if not has_run(root):
                continue
            if hasattr(root, "reset_iter_state"):
                root.reset_iter_state()
            else:
                self._is_broken = True  # before torch 2.13
        if not kept and not in_backward:
            return
        self._drop(kept)
        for parameter in self._names:
            if parameter.requires_grad:
                # If this gradient is still there at the next step, the user's code hasn't called zero_grad.
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._lost[parameter] = parameter.grad

    def release(self) -> None:
        """Drop references to the parameters."""
        for group in self._groups:
            for each in group.fsdp_params:
                vars(each.sharded_param).pop(KEPT_GRADIENT, None)
        self._groups.clear()
        self._names.clear()
        self._lost.clear()
        self._roots = ()


class _Kept:
    """The `KeptGradient` of one parameter."""

    def __init__(self, gradients: UnitGradients, parameter: Any) -> None:
        self._gradients, self._parameter = gradients, parameter

    def reduce_into_grad(self) -> None:
        self._gradients.reduce_into_grad(self._parameter)

    def drop(self) -> None:
        self._gradients.replace(self._parameter)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None


def mark_accumulated(parameters: Iterable[Any]) -> None:
    """Record that autograd accumulated the unreduced gradients of a group's `fsdp_params`."""
    for each in parameters:
        if has_gradient(each):
            for gradient in gathered_gradients(each):
                setattr(gradient, _ACCUMULATED, True)


def _is_assigned(parameter: Any) -> bool:
    return any(not hasattr(gradient, _ACCUMULATED) for gradient in gathered_gradients(parameter))


def _groups_of(module: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return reduced_groups(module) if isinstance(module, FSDPModule) else []
