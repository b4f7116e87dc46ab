"""Whether an optimizer steps shards as it would step whole tensors, found out by stepping small stand-ins."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from stratagem.sdk.shards import CUTS, Cut
from stratagem.sdk.states import common_states
from stratagem_sharding.mixing_operations import MixingOperations

__all__ = ["why_not"]

SCALES = (1.0, 1e-3, 1e3, 10.0)
"""Scales of the gradients, step by step, so that any limit on a norm applies in one of them."""
APART = 30.0
"""How much larger the gradients of every other tensor are at times."""
LATER = (16, 128, 1024, 16384)
"""What an optimizer is made to count between further steps: some begin to mix elements after a number of steps."""
FURTHER = 6
"""Steps one after the other before that: some mix elements in every so many steps."""
ELEMENTS = 1 << 17
"""The most elements of a stand-in: smaller parameters are tried in their own shape, so that what depends on their
size, as a factored moment, is seen."""
RATE = 0.01
"""The learning rate where a group's is 0."""
TOLERANCE = 1e-6
"""How far results may be apart, relative to the largest change."""

_ELEMENTWISE = "steps_elementwise"


def why_not(optimizer: Optimizer, cuts: Sequence[Cut]) -> str | None:
    """Return why `optimizer` can't step shards, as the end of a sentence; None where it can.

    A copy of it, with its settings, steps small stand-ins for its parameters, once as a whole and once as shards
    in as many optimizers; the results must agree. The optimizer, its parameters and all random number generators
    are left as they are. A class may say it instead, by an attribute `steps_elementwise` that is True or False; one
    that doesn't step elements separately is still tried on some parameters alone.

    Args:
        optimizer: with its groups; parameters may be sharded already.
        cuts: the ways in which its parameters are cut; none to find out whether a copy of it can be tried at all.
    """
    declared = getattr(optimizer, _ELEMENTWISE, None)
    if declared:
        return None
    if declared is False and tuple(cuts) not in ((), ("parameters",)):
        return "it says so itself (steps_elementwise = False)"
    attempts = [_How(torch.float64), _How(None), _How(torch.float64, closure=True)]
    if tuple(cuts) == ("parameters",):
        attempts.append(_How(None, sparse=True))  # shards of gradients are dense
    with _generators_kept():
        errors: list[Exception] = []
        for how in attempts:
            try:
                reason = _try(optimizer, cuts, how)
            except _NotTriedError as error:
                errors.append(error.error)
                continue
            if reason is None and not how.closure and not _is_torchs(optimizer):
                with suppress(_NotTriedError):
                    reason = _try(optimizer, cuts, how._replace(closure=True))
            return reason
    return (
        f"a copy of it couldn't be tried on small tensors ({type(errors[0]).__name__}: {errors[0]}); if it treats "
        f"each element of a parameter separately, say {_ELEMENTWISE} = True in its class"
    )


def _is_torchs(optimizer: Optimizer) -> bool:
    """Whether its step is torch's, which calls a closure before anything else, except that of LBFGS."""
    return type(optimizer).step.__module__.startswith("torch.optim.")


class _How(NamedTuple):
    """One way to try."""

    dtype: torch.dtype | None
    """Dtype of the stand-ins; their parameters' own when None."""
    sparse: bool = False
    """Whether gradients are."""
    closure: bool = False
    """Whether steps get a closure, as some optimizers require."""


class _NotTriedError(Exception):
    """Whole tensors couldn't be stepped, so that nothing is known."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _try(optimizer: Optimizer, cuts: Sequence[Cut], how: _How) -> str | None:
    groups = _stand_ins(optimizer, cuts, how.dtype)
    for cut in cuts or (None,):
        try:
            whole = _Copy(optimizer, groups)
        except Exception as error:
            raise _NotTriedError(error) from error
        divided = [_halves(group, cut) for group in groups] if cut else []
        parts = [_Copy(optimizer, [halves[at] for halves in divided]) for at in range(2 if cut else 0)]
        generator, mixing = torch.Generator().manual_seed(0), MixingOperations(rows_apart=cut == "rows")
        plan = [(scale, 0) for scale in SCALES] + [(1.0, 0)] * FURTHER
        plan += [(1.0, count) for later in LATER for count in (later, 0)]
        for step, (scale, count) in enumerate(plan):
            # Every other tensor has larger ones in every other step, so that what is decided by all differs from what
            # is decided by some.
            larger = APART ** (step % 2)
            grads = [
                [scale * larger ** (at % 2) * _random(p, generator) for at, p in enumerate(group)]
                for group in groups
            ]
            before = whole.values()
            if count:
                for each in (whole, *parts):
                    each.count_on(count)
            try:
                with mixing:
                    whole.step(grads, how)
            except Exception as error:
                raise _NotTriedError(error) from error
            if not cut:
                continue
            divided = [_halves(group, cut) for group in grads]
            for at, part in enumerate(parts):
                try:
                    part.step([halves[at] for halves in divided], how)
                except Exception as error:
                    return f"it fails on shards ({type(error).__name__}: {error})"
            first, second = (part.values() for part in parts)
            if not all(_agree(*each, cut) for each in zip(before, whole.values(), first, second)):
                counted = count or step + 1
                return (
                    f"it needs {_NEEDS[cut]}: given {_GIVEN[cut]} in a trial with small tensors, it came to other "
                    f"numbers in step {counted}"
                )
        if not all(map(_moved, groups, whole.values())):
            raise _NotTriedError(ValueError("it left some of them as they were"))
        if cut == "flat" and whole.common_states():
            return "it has states of no parameter, and an engine of flat shards expects each to be one's"
        if cut == "parameters" and whole.moves_first:
            return f"it needs {_NEEDS[cut]}: it changes them before its closure computes a loss"
        if mixing.found and cut == "parameters" and whole.common:
            # As a rate for all parameters, which grows by a limited factor at first, whatever gradients are.
            return f"it needs {_NEEDS[cut]}: its steps change {whole.common!r} of all by their values"
        if mixing.found and cut and cut != "parameters":
            # What it does with the result may depend on values that these tensors didn't have.
            return (
                f"it needs {_NEEDS[cut]}: {mixing.found} of one was computed in a trial with small tensors; if that "
                f"changes no step, say {_ELEMENTWISE} = True in its class"
            )
    return None


_GIVEN = {
    "rows": "rows",
    "columns": "columns",
    "flat": "flattened shards",
    "parameters": "some parameters alone",
}
_NEEDS = {cut: "all parameters at once" if cut == "parameters" else "whole tensors" for cut in CUTS}


def _agree(
    before: list[torch.Tensor],
    after: list[torch.Tensor],
    first: list[torch.Tensor],
    second: list[torch.Tensor],
    cut: Cut,
) -> bool:
    """Whether a group of whole tensors came to what its two halves came to."""
    if not after:
        return True
    change = max(float((new - old).abs().max()) if new.numel() else 0.0 for new, old in zip(after, before))
    expected = [_joined(half) for half in _halves(after, cut)]
    apart = [(mine - theirs).abs() for mine, theirs in zip(expected, (_joined(first), _joined(second)))]
    size = max(float(each.abs().max()) if each.numel() else 0.0 for each in expected)
    limit = TOLERANCE * change + 1e-12 * size
    return all(bool((each <= limit).all()) for each in apart)  # NaN isn't


def _moved(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Whether an optimizer has changed something of a group."""
    has_elements = any(tensor.numel() for tensor in before)
    return not has_elements or not all(map(torch.equal, before, after))


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    # Parameters of one group may be on several devices, or on none yet.
    return torch.cat([tensor.reshape(-1).cpu() for tensor in tensors]) if tensors else torch.zeros(0)


class _Copy:
    """A copy of an optimizer over other parameters."""

    def __init__(self, optimizer: Optimizer, groups: list[list[torch.Tensor]]) -> None:
        self.groups = [[nn.Parameter(p.detach().clone()) for p in group] for group in groups]
        self._optimizer = _copied(optimizer, self.groups)
        if callable(train := getattr(self._optimizer, "train", None)):
            train()  # as an optimizer without a schedule has to be called before it steps
        self._numbers: dict[Any, float] = {}
        """What `_numbered` had before the last step."""
        self.moves_first = False
        """Whether a step has changed parameters before it called its closure for the first time."""
        self.common = ""
        """The name of a number of a group or of the optimizer that a step has changed, other than to count."""

    def common_states(self) -> dict[Any, Any]:
        """Return the states that are of no parameter."""
        return common_states(self._optimizer)

    def values(self) -> list[list[torch.Tensor]]:
        """Return what its parameters are now, by group."""
        return [[parameter.detach().clone() for parameter in group] for group in self.groups]

    def step(self, grads: list[list[torch.Tensor]], how: _How) -> None:
        self._numbers = {place: float(holder[key]) for place, (holder, key) in self._numbered().items()}

        calls, at_first = itertools.count(1), self.values()

        def assign() -> float:
            call = next(calls)
            if call == 1:
                now = itertools.chain(*self.values())
                self.moves_first |= not all(map(torch.equal, itertools.chain(*at_first), now))
            smaller = 1 / call  # the loss and its slope: a search along a line goes on, and ends
            for group, own in zip(self.groups, grads):
                for parameter, grad in zip(group, own):
                    # Of each element by itself, and another one where an optimizer has moved it before a second call.
                    grad = (smaller * (grad + parameter)).detach().to(grad.dtype)
                    parameter.grad = grad.to_sparse(1) if how.sparse and grad.dim() else grad
            return smaller

        # Past schedulers and whatever else has replaced `step` of the object.
        step = type(self._optimizer).step
        before = {place: float(holder[key]) for place, (holder, key) in self._common().items()}
        if how.closure:
            step(self._optimizer, assign)
        else:
            assign()
            step(self._optimizer)
        for (at, key), (holder, _) in self._common().items():
            if float(holder[key]) - before.get((at, key), holder[key]) not in (0, 1):
                self.common = self.common or str(key)

    def count_on(self, count: int) -> None:
        """Go on as if there had been `count - 1` steps: sets each number that the last step has raised by 1."""
        for place, (holder, key) in self._numbered().items():
            value = holder[key]
            if self._numbers.get(place) != float(value) - 1:
                continue
            if isinstance(value, torch.Tensor):
                value.fill_(count - 1)
            else:
                holder[key] = type(value)(count - 1)

    def _numbered(self) -> dict[Any, tuple[dict[Any, Any], Any]]:
        """Return where the optimizer has numbers: in its states, its groups and its attributes."""
        parameters = [parameter for group in self.groups for parameter in group]
        return self._numbers_in(
            [*(self._optimizer.state.get(each, {}) for each in parameters), *self._shared]
        )

    def _common(self) -> dict[Any, tuple[dict[Any, Any], Any]]:
        """Return where it has numbers for several parameters."""
        return self._numbers_in(self._shared)

    @property
    def _shared(self) -> list[dict[Any, Any]]:
        return [*self._optimizer.param_groups, vars(self._optimizer)]

    @staticmethod
    def _numbers_in(holders: list[dict[Any, Any]]) -> dict[Any, tuple[dict[Any, Any], Any]]:
        return {
            (at, key): (holder, key)
            for at, holder in enumerate(holders)
            for key, value in holder.items()
            if (isinstance(value, (int, float)) and not isinstance(value, bool))
            or (isinstance(value, torch.Tensor) and value.numel() == 1 and not value.dim())
        }


def _copied(optimizer: Optimizer, groups: list[list[nn.Parameter]]) -> Optimizer:
    made: Optimizer = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): made}
    settings = []
    for group, own in zip(optimizer.param_groups, groups):
        for parameter in group["params"]:
            memo[id(parameter)] = own[0] if own else parameter
        settings.append(group)
    for group, own in zip(settings, groups):
        kept = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        group_copy = deepcopy(kept, memo)
        memo.setdefault(id(group), group_copy)
        group_copy["params"] = list(own)
        _leave_warm_up(group_copy)
    for key, value in vars(optimizer).items():
        if key in ("state", "step"):
            continue
        if key == "param_groups":
            made.__dict__[key] = [memo[id(group)] for group in settings]
        elif "_hooks" in key:
            made.__dict__[key] = OrderedDict()
        else:
            made.__dict__[key] = deepcopy(value, memo)
    made.state = defaultdict(dict)
    for group, own in zip(settings, groups):
        state = _state_at_start(optimizer, group)
        for parameter in own if state else ():
            made.state[parameter] = {
                key: torch.full_like(parameter, value.value)
                if isinstance(value, _All)
                else deepcopy(value, dict(memo))  # its own for each parameter
                for key, value in state.items()
            }
    return made


def _leave_warm_up(group: dict[str, Any]) -> None:
    """Set a learning rate that isn't 0, as it is where a schedule begins: all optimizers agree that nothing moves."""
    rate = group.get("lr")
    if isinstance(rate, (int, float, torch.Tensor)) and not float(rate):
        later = float(group.get("initial_lr") or 0) or RATE
        group["lr"] = torch.full_like(rate, later) if isinstance(rate, torch.Tensor) else later


class _All(NamedTuple):
    """A tensor of a parameter's shape, all of whose elements are one."""

    value: Any


def _state_at_start(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """Return what the constructor made as the state of the group's parameters; torch 2.9's Adagrad makes none later.

    Empty for an optimizer that makes states when it steps, and for one that has stepped.
    """
    if not group["params"]:
        return {}
    largest = max(group["params"], key=torch.Tensor.dim)
    made: dict[str, Any] = {}
    for key, value in optimizer.state.get(largest, {}).items():
        if key == "step" or not isinstance(value, torch.Tensor) or value.shape != largest.shape:
            made[key] = value
            continue
        own = (value.to_local() if hasattr(value, "to_local") else value).detach().reshape(-1)
        if own.is_meta or bool((own != own[:1]).any()):
            return {}
        made[key] = _All(own[0].item() if own.numel() else 0.0)
    return made


def _stand_ins(
    optimizer: Optimizer, cuts: Sequence[Cut], dtype: torch.dtype | None
) -> list[list[torch.Tensor]]:
    """Return small tensors for each group, for each number of dimensions that its parameters have."""
    # Two of each where they are dealt out whole.
    factors = (1.0, 3.0) if "parameters" in cuts else (1.0,)
    generator = torch.Generator().manual_seed(1)
    seen: set[Any] = set()
    made = []
    for group in optimizer.param_groups:
        kinds: dict[Any, torch.Tensor] = {}
        for parameter in group["params"]:
            kind = (parameter.dim(), parameter.dtype)
            if kind not in kinds or parameter.numel() > kinds[kind].numel():
                kinds[kind] = parameter
        settings = tuple((key, repr(value)) for key, value in group.items() if _tells_kinds_apart(value))
        stand_ins: list[torch.Tensor] = []
        for kind, parameter in kinds.items():
            # Groups that differ in a number alone, as a rate per layer, are stepped alike: the first will do.
            is_new = (settings, kind) not in seen
            seen.add((settings, kind))
            shape = _small(parameter.shape) if is_new else tuple(min(2, side) for side in parameter.shape)
            device = "cpu" if parameter.is_meta else parameter.device
            for factor in factors:
                empty = torch.empty(shape, dtype=_wide(parameter.dtype, dtype), device=device)
                stand_ins.append(factor * _random(empty, generator))
        made.append(stand_ins)
    return made


def _small(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape of at most `ELEMENTS` elements, even where shards could have more than a row."""
    sides = [max(1, side) for side in shape]
    while prod(sides) > ELEMENTS:
        sides[sides.index(max(sides))] //= 2
    return tuple(side if side < 2 or at > 1 else side - side % 2 for at, side in enumerate(sides))


def _tells_kinds_apart(value: Any) -> bool:
    return isinstance(value, (bool, str)) or value is None


def _wide(own: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    if wanted is None or not (own.is_floating_point or own.is_complex):
        return own
    return torch.complex128 if own.is_complex else wanted


def _random(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    dtype = like.dtype if like.dtype.is_floating_point or like.dtype.is_complex else torch.float32
    return torch.randn(like.shape, generator=generator, dtype=dtype).to(like)


def _halves(group: list[torch.Tensor], cut: Cut) -> list[list[torch.Tensor]]:
    """Return each of two ranks' shards of a group."""
    if cut == "parameters":
        return [group[::2], group[1::2]]
    if cut == "flat":
        if not group:
            return [[], []]
        shards = torch.cat([tensor.detach().reshape(-1) for tensor in group]).chunk(2)
        return [[shard] for shard in (shards if len(shards) == 2 else (*shards, shards[0][:0]))]
    dim = 0 if cut == "rows" else -1
    halves: list[list[torch.Tensor]] = [[], []]
    for tensor in group:
        cut_here = tensor.dim() > (0 if cut == "rows" else 1) and tensor.shape[dim] > 1
        shards = tensor.detach().chunk(2, dim) if cut_here else (tensor.detach(), tensor.detach())
        for half, shard in zip(halves, shards):
            half.append(shard.contiguous())
    return halves


@contextmanager
def _generators_kept() -> Iterator[None]:
    states: tuple[Any, Any] = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
