"""`TrackedDDP`: DistributedDataParallel for parameters that may be frozen and unfrozen during a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets, gradients_of_any
from stratagem_sharding.exchange import StoreExchange
from stratagem_sharding.gradient_tracker import on_gradient
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stratagem import ConfigError
from stratagem.errors import DataError
from stratagem_ddp.ready import NoneAllowed, reduce_as_they_are
from stratagem_ddp.torch_private import check_finished, rebuild_buckets, remove_hooks

WAIT_S = 60.0
"""How long a rank on which requires_grad changed waits for the others to reach the same forward."""

_requires_grad = attrgetter("requires_grad")


class TrackedDDP:
    """Reconstructs DistributedDataParallel when other parameters require gradients than before.

    DDP only reduces gradients of parameters that required them when it was constructed.

    Args:
        module: on its device; its parameters stay the same objects.
        named: its parameters, with their names in messages.
        construct: wraps a module in DistributedDataParallel. Collective.
        register: registers the communication hook.
        exchange: between the same ranks.
        may_drift: whether gradients are not averaged over all ranks.

    Attributes:
        ddp: None while no parameter requires a gradient.
        module: the module to call for a forward in training.
        nothing: the object that it returns in place of None.
    """

    def __init__(
        self,
        module: nn.Module,
        named: Sequence[tuple[str, nn.Parameter]],
        construct: Callable[[nn.Module], DistributedDataParallel],
        register: Callable[[DistributedDataParallel], None],
        exchange: StoreExchange,
        *,
        may_drift: bool,
    ) -> None:
        self._may_drift = may_drift
        self._named, self._parameters = named, [parameter for _, parameter in named]
        self._construct, self._register, self._exchange = construct, register, exchange
        self._inner = NoneAllowed(module)
        self.nothing = self._inner.nothing
        self._flags: list[bool]
        self._changes = count()
        self._order: list[str] | None
        self._replayed: list[str] | None = None
        self._outdated: bool
        self._abandoned: bool
        self._stray: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._reduced: list[tuple[str, nn.Parameter]] = []
        self.ddp: DistributedDataParallel | None = None
        self._build()

    # Before a forward in training -------------------------------------------------------------------

    def follow(self) -> bool:
        """Reconstruct DDP if needed; return whether it was. Collective if it is."""
        flags = list(map(_requires_grad, self._parameters))
        if self._order is None:
            self._note_order()
        if flags == self._flags and not self._outdated:
            return False
        if flags != self._flags and not self._is_due(flags):
            self._flags = flags
            return False
        self._compare(flags)
        if not self._abandoned:
            self._average_what_is_there()
        self._build()
        return True

    def _is_due(self, flags: list[bool]) -> bool:
        if self.ddp is None or not self.ddp.find_unused_parameters:
            return True
        # DDP finds frozen parameters unused, so only newly trained ones need a new DDP.
        known = {id(parameter) for _, parameter in self._reduced}
        return any(flag and id(p) not in known for flag, p in zip(flags, self._parameters))

    def _compare(self, flags: list[bool]) -> None:
        if flags == self._flags:
            return
        own = "".join("1" if flag else "0" for flag in flags)
        ranks = self._exchange.compare(f"requires_grad/{next(self._changes)}", own, WAIT_S)
        for rank, theirs in enumerate(ranks):
            if theirs == own:
                continue
            changed = (index for index, flag in enumerate(flags) if flag != self._flags[index])
            index = next(i for i in changed) if theirs is None else _first_difference(own, theirs)
            raise DataError(
                f"requires_grad of {self._named[index][0]!r} has become {flags[index]} on rank {dist.get_rank()} and "
                f"{'has not changed' if theirs is None else f'is {not flags[index]}'} on rank {rank}: freeze and "
                "unfreeze parameters on all ranks before the same step"
            )

    def _average_what_is_there(self) -> None:
        """Average gradients of earlier micro-batches of the step: a new reducer may not include all of them."""
        if self.ddp is None or self._may_drift:
            return
        self.check_reduced()
        parameters = [parameter for _, parameter in self._reduced]
        has_one = [parameter.grad is not None for parameter in parameters]
        for flat in flattened_buckets(gradients_of_any(parameters, has_one, self.ddp.device)):
            dist.all_reduce(flat)
            flat.div_(dist.get_world_size())

    # After a forward ----------------------------------------------------------------------------------

    def refuse_changed_flags(self) -> None:
        """Refuse parameters that were frozen or unfrozen since the forward that prepared a reduction.

        DistributedDataParallel would fill a frozen parameter's gradient with zeros, and an optimizer would step it.
        With find_unused_parameters, DDP itself checks after the forward which parameters the outputs depend on.

        Raises:
            DataError: names the first one.
        """
        flags = list(map(_requires_grad, self._parameters))
        if self.ddp is None or self.ddp.find_unused_parameters or flags == self._flags:
            return
        index = next(at for at, flag in enumerate(flags) if flag != self._flags[at])
        raise DataError(
            f"requires_grad of {self._named[index][0]!r} has become {flags[index]} between a forward and the step "
            "after it: freeze and unfreeze parameters before the forward, or choose strategy "
            "ddp_find_unused_parameters_true"
        )

    # After a backward ---------------------------------------------------------------------------------

    def check_reduced(self) -> None:
        """Refuse to continue if gradients were not reduced.

        Raises:
            ConfigError: the loss doesn't depend on all parameters.
            DataError: a parameter was unfrozen within the step.
        """
        if self._stray:
            names = [name for name, parameter in self._named if any(parameter is p for p in self._stray)]
            self._stray.clear()
            raise DataError(
                f"{_some(names)} required no gradients when the step began and got some in it, which are not reduced "
                "over ranks: unfreeze parameters before the step, as in on_train_batch_start or on_train_epoch_start"
            )
        if self.ddp is None:
            return
        try:
            check_finished(self.ddp)
        except RuntimeError as error:
            raise self.unused(error) from error

    def is_reduced(self) -> bool:
        """Whether the reduction that the last forward prepared has finished, or none has begun."""
        try:
            if self.ddp is not None:
                check_finished(self.ddp)
        except RuntimeError:
            return False
        return True

    @property
    def prepares_reduction(self) -> bool:
        """Whether a forward now prepares a reduction in the backward after it."""
        return self.ddp is not None and self.ddp.require_backward_grad_sync and torch.is_grad_enabled()

    @property
    def is_abandoned(self) -> bool:
        """Whether current gradients aren't averages, because a backward has raised."""
        return self._abandoned

    def forget_stray(self) -> None:
        """Forget gradients of parameters outside of DDP: they have been averaged in another way."""
        self._stray.clear()

    def abandon_reduction(self) -> None:
        """Reconstruct DDP at the next forward in training, since a reduction won't finish."""
        self._outdated = self._abandoned = True

    def unused(self, error: RuntimeError) -> ConfigError:
        """Return the error to raise in place of torch's error about unused parameters."""
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        positions = [int(each) for each in found.group(1).split()] if found else []
        names = [self._reduced[index][0] for index in positions if index < len(self._reduced)]
        return ConfigError(
            f"the loss of this step on rank {dist.get_rank()} doesn't depend on {_some(names)}, whose gradients the "
            "other ranks wait for: choose strategy ddp_find_unused_parameters_true, or the option "
            "find_unused_parameters=True, as a model needs that doesn't use all of its parts in every step"
        )

    def reduce_without_loss(self, backward: Callable[[torch.Tensor], None]) -> None:
        """Join the other ranks' reduction with the current gradients, without a loss on this rank.

        Raises:
            DataError: with static_graph=True, which needs the same backward in each step.
        """
        if self.ddp is None:
            return
        if self.ddp.static_graph:
            raise DataError(
                "training_step returned None, and static_graph=True needs the same backward in every step: leave "
                "static_graph out, or return a loss"
            )
        reduce_as_they_are(self.ddp, [parameter for _, parameter in self._reduced], None, backward)

    def drop_gradients(self) -> None:
        """Set the gradients of the reduced parameters to None."""
        for _, parameter in self._reduced:
            parameter.grad = None

    # The arrangement of buckets -----------------------------------------------------------------------

    @property
    def order(self) -> list[str] | None:
        """Names of the parameters in the order of the buckets; None before the first backward.

        gloo adds up elements in an order that depends on their place in a bucket, and torch builds buckets in the
        order in which the first gradients became ready. A resumed run needs the same buckets for bitwise equal
        results.
        """
        if self._order is None:
            self._note_order()
        return self._order

    def restore_order(self, names: list[str] | None) -> None:
        """Use a saved `order` for the buckets, from the next forward on."""
        self._replayed = names
        self._outdated = names is not None or self.order is not None

    def _note_order(self) -> None:
        ddp = self.ddp
        if ddp is None or not _rearranges(ddp):
            return
        ready_at = ddp.reducer.get_backward_stats()
        if len(ready_at) == len(self._reduced) and all(ready_at):
            positions = sorted(range(len(ready_at)), key=ready_at.__getitem__)
            self._order = [self._reduced[position][0] for position in positions]

    def _replay(self, ddp: DistributedDataParallel, order: list[str]) -> None:
        positions = {name: index for index, (name, _) in enumerate(self._reduced)}
        parameters = [parameter for _, parameter in self._reduced]
        kept = [parameter.grad for parameter in parameters]
        self.drop_gradients()
        reduce_as_they_are(ddp, parameters, [positions[name] for name in order], torch.Tensor.backward)
        rebuild_buckets(ddp)
        for parameter, grad in zip(parameters, kept):
            parameter.grad = grad
        self._order = order

    # Constructing ---------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.release()
        self._flags = list(map(_requires_grad, self._parameters))
        known = {id(parameter) for _, parameter in self._reduced} if self._finds_unused else set()
        self._reduced = [(name, p) for name, p in self._named if p.requires_grad or id(p) in known]
        self._order, self._outdated, self._abandoned = None, False, False
        self.module: nn.Module = self._inner
        if self._reduced:
            for _, parameter in self._reduced:
                parameter.requires_grad_(True)
            self.module = self.ddp = self._construct(self._inner)
            for flag, parameter in zip(self._flags, self._parameters):
                parameter.requires_grad_(flag)
            self._finds_unused = self.ddp.find_unused_parameters
            order = self._replayed
            names = sorted(name for name, _ in self._reduced)
            if order is not None and sorted(order) == names and _rearranges(self.ddp):
                self._replay(self.ddp, order)
                self._replayed = None
            self._register(self.ddp)  # after the replay, since a hook may count or remember what it reduces
        self._watch_the_others()

    _finds_unused = False

    def _watch_the_others(self) -> None:
        """Register hooks that record gradients of parameters outside of DDP."""
        reduced = {id(parameter) for _, parameter in self._reduced}
        for parameter in self._parameters:
            if id(parameter) not in reduced and (parameter.is_floating_point() or parameter.is_complex()):
                self._handles.append(on_gradient(parameter, self._stray.append))

    def release(self) -> None:
        """Remove the reducer and all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.ddp is not None:
            # If something keeps the old reducer alive, its hooks would reduce in addition to the new one's.
            remove_hooks(self.ddp)
        self.ddp = None
        self.module = self._inner


def _rearranges(ddp: DistributedDataParallel) -> bool:
    """Whether DDP rebuilds buckets after its first backward; with static_graph it does after the second."""
    return not ddp.find_unused_parameters and not ddp.static_graph


def _first_difference(ours: str, theirs: str) -> int:
    return next(index for index, (a, b) in enumerate(zip(ours, theirs)) if a != b)


def _some(names: Sequence[str]) -> str:
    if not names:
        return "some parameters"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(repr(name) for name in names[:3]) + more
