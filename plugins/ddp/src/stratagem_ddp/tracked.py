"""`TrackedDDP`: DistributedDataParallel over parameters that may be frozen and unfrozen in mid-run."""

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
"""How long a rank on which requires_grad changed waits for the others to come to the same forward."""

_requires_grad = attrgetter("requires_grad")


class TrackedDDP:
    """Constructs DistributedDataParallel again when other parameters require gradients than before.

    torch reduces the gradients of those that required them when it was constructed, and no others.

    Args:
        module: on its device; its parameters stay the same objects.
        named: its parameters, by the names to call them by.
        construct: makes DistributedDataParallel over what it gets. Collective.
        register: puts the communication hook onto it.
        exchange: between the same ranks.
        may_drift: gradients are not averaged over all ranks.

    Attributes:
        ddp: None while no parameter requires a gradient.
        module: what to call for a forward in training.
        nothing: what that returns in the place of None.
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
        """Construct again if that is due; True if it was. Collective where it is."""
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
        # One that is frozen is found unused: only a new one makes a difference.
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
        """Average what earlier micro-batches of the same step left: a new reducer doesn't know of all of it."""
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

        DistributedDataParallel would fill the gradient of one that was frozen with zeros, which an optimizer steps.
        With find_unused_parameters it looks after the forward which parameters the outputs depend on.

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
        """Refuse to continue where gradients were not reduced.

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
        """Whether the reduction that the last forward prepared is finished, or none was begun."""
        try:
            if self.ddp is not None:
                check_finished(self.ddp)
        except RuntimeError:
            return False
        return True

    @property
    def prepares_reduction(self) -> bool:
        """Whether a forward prepares a reduction of the backward after it."""
        return self.ddp is not None and self.ddp.require_backward_grad_sync and torch.is_grad_enabled()

    @property
    def is_abandoned(self) -> bool:
        """Whether gradients that are there are no averages, since a backward has raised."""
        return self._abandoned

    def forget_stray(self) -> None:
        """Gradients of parameters that weren't to be reduced have been averaged otherwise."""
        self._stray.clear()

    def abandon_reduction(self) -> None:
        """Construct again at the next forward in training, since a reduction won't be finished."""
        self._outdated = self._abandoned = True

    def unused(self, error: RuntimeError) -> ConfigError:
        """Return what to raise in the place of torch's complaint about unused parameters."""
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        positions = [int(each) for each in found.group(1).split()] if found else []
        names = [self._reduced[index][0] for index in positions if index < len(self._reduced)]
        return ConfigError(
            f"the loss of this step on rank {dist.get_rank()} doesn't depend on {_some(names)}, whose gradients the "
            "other ranks wait for: choose strategy ddp_find_unused_parameters_true, or the option "
            "find_unused_parameters=True, as a model needs that doesn't use all of its parts in every step"
        )

    def reduce_without_loss(self, backward: Callable[[torch.Tensor], None]) -> None:
        """Take part in the reduction of the gradients with what is in them, without a loss of this rank.

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
        """Leave no gradient on the reduced parameters."""
        for _, parameter in self._reduced:
            parameter.grad = None

    # The arrangement of buckets -----------------------------------------------------------------------

    @property
    def order(self) -> list[str] | None:
        """Names of the parameters in the order in which buckets are arranged; None before the first backward.

        gloo adds elements up in an order that depends on their place in a bucket, and torch arranges
        buckets in the order in which the first gradients became ready: a run that is continued from a
        checkpoint needs the same arrangement for the same numbers.
        """
        if self._order is None:
            self._note_order()
        return self._order

    def restore_order(self, names: list[str] | None) -> None:
        """Arrange buckets as in a run whose `order` this was, from the next forward on."""
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
            self._register(self.ddp)  # after: a hook may count or remember what it reduces
        self._watch_the_others()

    _finds_unused = False

    def _watch_the_others(self) -> None:
        """Notice gradients of parameters that aren't reduced."""
        reduced = {id(parameter) for _, parameter in self._reduced}
        for parameter in self._parameters:
            if id(parameter) not in reduced and (parameter.is_floating_point() or parameter.is_complex()):
                self._handles.append(on_gradient(parameter, self._stray.append))

    def release(self) -> None:
        """Let go of the reducer and of all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.ddp is not None:
            # What keeps the old one alive would otherwise let it reduce beside the new one.
            remove_hooks(self.ddp)
        self.ddp = None
        self.module = self._inner


def _rearranges(ddp: DistributedDataParallel) -> bool:
    """Whether its first backward arranges buckets; with static_graph it is the second."""
    return not ddp.find_unused_parameters and not ddp.static_graph


def _first_difference(ours: str, theirs: str) -> int:
    return next(index for index, (a, b) in enumerate(zip(ours, theirs)) if a != b)


def _some(names: Sequence[str]) -> str:
    if not names:
        return "some parameters"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(repr(name) for name in names[:3]) + more
