"""`why_not`: the trial of an optimizer on small tensors, once whole and once sharded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from stratagem.sdk.shards import CUTS, Cut
from stratagem_sharding.optimizer_trial.copies import TrialCopy, TrialOptions
from stratagem_sharding.optimizer_trial.mixing_operations import MixingOperations
from stratagem_sharding.optimizer_trial.stand_ins import halves, random_like, stand_ins

__all__ = ["why_not"]

SCALES = (1.0, 1e-3, 1e3, 10.0)
"""Scales of the gradients, step by step, so that any limit on a norm applies in at least one step."""
APART = 30.0
"""In every other step, the gradients of every other tensor are larger by this factor."""
LATER = (16, 128, 1024, 16384)
"""Step counts that the trial jumps to: some optimizers start to mix elements after a number of steps."""
FURTHER = 6
"""Consecutive steps before the jumps: some optimizers mix elements in every n-th step."""
PLAN = (
    *((scale, 0) for scale in SCALES),
    *((1.0, 0) for _ in range(FURTHER)),
    *((1.0, count) for later in LATER for count in (later, 0)),
)
"""For each step, the scale of gradients, and the step count to jump to before it; 0 for no jump."""
TOLERANCE = 1e-6
"""Tolerance for differences of results, relative to the largest change of a parameter."""

_ELEMENTWISE = "steps_elementwise"


def why_not(optimizer: Optimizer, cuts: Sequence[Cut]) -> str | None:
    """Return why `optimizer` can't step shards, as the end of a sentence; None if it can.

    A copy with the same settings steps small stand-ins for the parameters whole; two further copies step the shards
    of the stand-ins. The results must agree. The optimizer, its parameters and all random number generators are
    unchanged. A class may skip the trial by an attribute `steps_elementwise`, True or False. A class that doesn't
    step elements separately is still tried with the cut "parameters".

    Args:
        optimizer: with its groups; parameters may be sharded already.
        cuts: how its parameters are sharded; empty to find out only whether a copy can be tried at all,
            and draws no random numbers.
    """
    declared = getattr(optimizer, _ELEMENTWISE, None)
    if declared:
        return None
    if declared is False and tuple(cuts) not in ((), ("parameters",)):
        return "it says so itself (steps_elementwise = False)"
    attempts = [TrialOptions(torch.float64), TrialOptions(None), TrialOptions(torch.float64, closure=True)]
    if tuple(cuts) == ("parameters",):
        attempts.append(TrialOptions(None, sparse=True))  # shards of gradients are dense
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
    """Whether the optimizer's step is one of torch's. All of these except LBFGS's call the closure first."""
    return type(optimizer).step.__module__.startswith("torch.optim.")


class _NotTriedError(Exception):
    """Whole tensors couldn't be stepped, so the trial has no result."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _try(optimizer: Optimizer, cuts: Sequence[Cut], how: TrialOptions) -> str | None:
    """Return why a copy of an optimizer can't step shards of one of `cuts`; None if it can.

    Raises:
        _NotTriedError: the optimizer can't be tried in this way.
    """
    groups = stand_ins(optimizer, cuts, how.dtype)
    for cut in cuts or (None,):
        try:
            whole = TrialCopy(optimizer, groups)
        except Exception as error:
            raise _NotTriedError(error) from error
        mixing = MixingOperations(rows_apart=cut == "rows")
        reason = _other_numbers(optimizer, groups, cut, how, whole, mixing)
        if reason is None and not all(map(_moved, groups, whole.values())):
            raise _NotTriedError(ValueError("it left some of them as they were"))
        if reason is None and cut:
            reason = _sign_of_more(cut, whole, mixing.found)
        if reason is not None:
            return reason
    return None


def _other_numbers(
    optimizer: Optimizer,
    groups: list[list[torch.Tensor]],
    cut: Cut | None,
    how: TrialOptions,
    whole: TrialCopy,
    mixing: MixingOperations,
) -> str | None:
    """Step whole tensors and their shards; return how their results differ, or None if they agree."""
    divided = [halves(group, cut) if cut else [group] for group in groups]
    parts = [TrialCopy(optimizer, [group[at] for group in divided]) for at in range(2 if cut else 1)]
    generator = torch.Generator().manual_seed(0)
    for step, (scale, count) in enumerate(PLAN):
        # Larger gradients for every other tensor in every other step: a decision based on all tensors then differs
        # from one based on some of them.
        larger = APART ** (step % 2)
        grads = [
            [scale * larger ** (at % 2) * random_like(p, generator) for at, p in enumerate(group)]
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
        divided = [halves(group, cut) if cut else [group] for group in grads]
        for at, part in enumerate(parts):
            try:
                part.step([group[at] for group in divided], how)
            except Exception as error:
                return f"it fails on shards ({type(error).__name__}: {error})"
        if not cut:
            both = zip(chain(*whole.values()), chain(*parts[0].values()))
            if not all(torch.allclose(one, other, rtol=TOLERANCE, atol=1e-9) for one, other in both):
                return "it draws random numbers, which differ between ranks"
            continue
        first, second = (part.values() for part in parts)
        if not all(_agree(*each, cut) for each in zip(before, whole.values(), first, second)):
            return (
                f"it needs {_NEEDS[cut]}: given {_GIVEN[cut]} in a trial with small tensors, it came to other "
                f"numbers in step {count or step + 1}"
            )
    return None


def _sign_of_more(cut: Cut, whole: TrialCopy, mixed_by: str) -> str | None:
    """Return why shards may give other results with other gradients than the trial's, or None.

    Args:
        cut: the cut of the shards, whose results agreed in the trial.
        whole: the copy that has stepped whole tensors.
        mixed_by: name of an operation by which a step has mixed elements of a tensor, or "".
    """
    if cut == "flat" and whole.common_states():
        return "it has states of no parameter, and an engine of flat shards expects each to be one's"
    if cut != "parameters":
        return (
            f"it needs {_NEEDS[cut]}: {mixed_by} of one was computed in a trial with small tensors; if that "
            f"changes no step, say {_ELEMENTWISE} = True in its class"
            if mixed_by
            else None
        )
    if whole.moves_first:
        return f"it needs {_NEEDS[cut]}: it changes them before its closure computes a loss"
    if mixed_by and whole.common:
        # Such as one rate for all parameters that grows by a limited factor at first, whatever the gradients are: the
        # results agree although the rate depends on all of them.
        return f"it needs {_NEEDS[cut]}: its steps change {whole.common!r} of all by their values"
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
    """Whether stepping a group of whole tensors and stepping its two halves gave the same values."""
    if not after:
        return True
    change = max(float((new - old).abs().max()) if new.numel() else 0.0 for new, old in zip(after, before))
    expected = [_joined(half) for half in halves(after, cut)]
    apart = [(mine - theirs).abs() for mine, theirs in zip(expected, (_joined(first), _joined(second)))]
    size = max(float(each.abs().max()) if each.numel() else 0.0 for each in expected)
    limit = TOLERANCE * change + 1e-12 * size
    return all(bool((each <= limit).all()) for each in apart)  # False for NaN


def _moved(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Whether an optimizer has changed any tensor of a group; True for a group without elements."""
    has_elements = any(tensor.numel() for tensor in before)
    return not has_elements or not all(map(torch.equal, before, after))


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    # Parameters of one group may be on several devices, or on "meta".
    return torch.cat([tensor.reshape(-1).cpu() for tensor in tensors]) if tensors else torch.zeros(0)


@contextmanager
def _generators_kept() -> Iterator[None]:
    states: tuple[Any, Any] = random.getstate(), np.random.get_state()
    # Without a list of devices, torch keeps the generators of all that the machine has, and warns of it.
    # A PyTorch built for CUDA names it on machines without a GPU, too, unless it is asked to look.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kept = (
        torch.random.fork_rng([])
        if accelerator is None
        else torch.random.fork_rng([torch.accelerator.current_device_index()], device_type=accelerator.type)
    )
    with kept:
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
