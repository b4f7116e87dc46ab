"""The catalogue of likely causes: what a difference looks like, and what it usually comes from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from stratagem_diff.comparison import Comparison, Difference
from stratagem_diff.files import Place

CLOSE = 1e-3
"""How near a number must be to another, relatively, to be taken for it."""

Cause = Callable[[Comparison, Difference], "str | None"]


def likely_causes(found: Comparison, catalogue: Sequence[Cause] | None = None) -> list[str]:
    """Return what the first difference usually comes from, the most telling first; none where nothing fits.

    Args:
        found: the comparison.
        catalogue: the causes that are looked for; `CATALOGUE` if not given.
    """
    first = found.first
    if first is None:
        return []
    causes = [cause(found, first) for cause in (CATALOGUE if catalogue is None else catalogue)]
    return list(dict.fromkeys(each for each in causes if each is not None))


# Each looks at the first difference ----------------------------------------------------------------


def tie_broken(found: Comparison, first: Difference) -> str | None:
    """A parameter has two names on one side, and on the other there are two parameters."""
    one, other = found.ours.aliases, found.theirs.aliases
    for label, has, lacks in (("B", one, other), ("A", other, one)):
        for alias, name in has.items():
            if lacks.get(alias) != name and alias not in lacks:
                return f"tie broken: {alias!r} and {name!r} are one parameter, and in {label} they are two"
    return None


def not_finite(found: Comparison, first: Difference) -> str | None:
    """Values overflow or are divided by zero on one side."""
    for label, whole in (("A", first.ours), ("B", first.theirs)):
        if whole is not None and not bool(whole.data.isfinite().all()):
            return f"{label} has values that aren't finite: an overflow, a division by zero, or a wholly masked row"
    return None


def left_out(found: Comparison, first: Difference) -> str | None:
    """A gradient is zero or missing."""
    if first.place.kind != "parameter gradient":
        return None
    if first.note:
        return (
            "the parameter isn't reached: frozen, detached, replaced after the optimizer was made, or its gradient "
            "was dropped"
        )
    if first.theirs is not None and not bool(first.theirs.data.any()):
        return "the gradient is zero: detached from the loss, or dropped before the step"
    return None


def ranks_apart(found: Comparison, first: Difference) -> str | None:
    """Each rank has its own value, and the mean or the sum over ranks is the right one."""
    theirs, ours = first.theirs, first.ours
    if theirs is None or ours is None or theirs.data.shape != ours.data.shape:
        return None
    if len({rank for rank, _ in theirs.rank_copies}) < 2:
        return None
    copies = torch.stack([copy for _, copy in theirs.rank_copies])
    if _near(copies[0], copies[1:].mean(0)) and bool((copies == copies[0]).all()):
        return None
    if _near(copies.mean(0), ours.data):
        return "not reduced: ranks have their own values, and their mean is A's"
    if _near(copies.sum(0), ours.data):
        return "not reduced: ranks have their own values, and their sum is A's"
    if first.place.kind == "buffer" or _is_batch_norm(found, first.place):
        return "ranks have their own values: each normalizes or counts its own batch"
    return "ranks have other values than each other: they aren't kept equal, or reduced over some ranks alone"


def scaled(found: Comparison, first: Difference) -> str | None:
    """The whole value is k times as large."""
    if first.ratio is None or not first.is_proportional or abs(first.ratio - 1) < CLOSE:
        return None
    k, size = first.ratio, found.theirs.world_size
    step = first.place.step
    micro = max(found.ours.micro_batches(step), found.theirs.micro_batches(step))
    readings = [
        (size, "summed over ranks where it should be averaged"),
        (1 / size, "averaged over ranks once too often, or divided by the number of ranks by two parties"),
        (micro, "not divided by the number of micro-batches"),
        (1 / micro, "divided by the number of micro-batches once too often"),
        (size * micro, "neither averaged over ranks nor divided by the number of micro-batches"),
        (-1, "the sign is turned"),
    ]
    fitting = [text for number, text in readings if number != 1 and abs(k / number - 1) < CLOSE]
    if fitting:
        return f"scale by {_number(k)}: {', or '.join(fitting)}"
    whole = round(k) if k >= 1 else round(1 / k) if k > 0 else 0
    if whole > 1 and abs(max(k, 1 / k) / whole - 1) < CLOSE:
        return (
            f"scale by {_number(k)}: a count of ranks, micro-batches, groups or copies is taken for another"
        )
    if first.place.kind == "parameter gradient" and _all_gradients_scaled(found, first):
        return f"scale by {_number(k)} of all gradients: another norm clips them, or the loss is weighted"
    return f"scale by {_number(k)}"


def micro_batches_lost(found: Comparison, first: Difference) -> str | None:
    """Gradients of some micro-batches don't arrive."""
    if first.place.kind != "parameter gradient":
        return None
    layouts = found.layouts.get(first.place.step)
    micro = found.theirs.micro_batches(first.place.step)
    if (
        layouts is None
        or layouts.problem
        or micro < 2
        or first.ratio is None
        or not 0 < first.ratio < 1
        or first.is_proportional
    ):
        return None
    gradients = [
        place for place in found.errors if (place.step, place.kind) == (first.place.step, first.place.kind)
    ]
    if len(list(_gradients(found, first.place.step))) < len(gradients):
        return None  # all parameters lose a micro-batch alike
    missing = micro - round(first.ratio * micro)
    return (
        f"about {max(1, missing)} of {micro} micro-batches missing: gradients are dropped or replaced between them, "
        "or never added"
    )


def weighted_otherwise(found: Comparison, first: Difference) -> str | None:
    """Ranks or micro-batches divide their losses by their own counts."""
    layouts = found.layouts.get(first.place.step)
    if layouts is None or first.place.kind not in ("output gradient", "parameter gradient"):
        return None
    for label, layout in (("A", layouts.ours), ("B", layouts.theirs)):
        factors = [abs(each) for each in layout.factors]
        if len(factors) > 1 and max(factors) > min(factors) * (1 + CLOSE):
            shares = ", ".join(_number(max(factors) / each) for each in factors)
            return (
                f"other weights: the losses of {label}'s ranks and micro-batches count {shares}, as where each is "
                "divided by its own number of samples or tokens, and then averaged"
            )
    return None


def stale(found: Comparison, first: Difference) -> str | None:
    """The value is that of the step before."""
    place = first.place
    if place.step < 1 or first.theirs is None:
        return None
    before = Place(place.step - 1, place.kind, place.name, place.call, place.item)
    if place.step == found.ours.first_step:
        before = Place(0, "start", place.name)
    local_values = found.ours.places.get(before)
    if not local_values or local_values[0].value.data.shape != first.theirs.data.shape:
        return None
    if _near(local_values[0].value.data.double(), first.theirs.data):
        return "stale: it is A's value of the step before, so that an update or a copy is missing"
    return None


def shards_moved(found: Comparison, first: Difference) -> str | None:
    """The local values are right, and in another order."""
    ours, theirs = first.ours, first.theirs
    if ours is None or theirs is None or not ours.is_whole or ours.data.shape != theirs.data.shape:
        return None
    if _near(ours.data, theirs.data, 0.05):  # elements are nearly equal, so that any order would fit
        return None
    if ours.data.dim() == 2 and ours.data.shape[0] == ours.data.shape[1] and _near(ours.data.T, theirs.data):
        return "transposed"
    for count in sorted({found.theirs.world_size, found.ours.world_size, 2, 3, 4} - {1}):
        for dim in range(ours.data.dim()):
            if count > 4 or ours.data.shape[dim] % count:
                continue
            chunks = ours.data.chunk(count, dim)
            for order in itertools.permutations(range(count)):
                moved = torch.cat([chunks[index] for index in order], dim)
                if order != tuple(range(count)) and _near(moved, theirs.data):
                    return f"shard order swapped: the {count} parts along dim {dim} come in the order {list(order)}"
            merged = torch.stack(chunks, dim + 1).flatten(dim, dim + 1)
            if _near(merged, theirs.data):
                return f"shard order swapped: {count} parts along dim {dim} are interleaved"
    return None


def lower_precision(found: Comparison, first: Difference) -> str | None:
    """B's numbers are those of a coarser dtype, in a finer one."""
    ours, theirs = first.ours, first.theirs
    if ours is None or theirs is None or not theirs.is_whole or not theirs.data.is_floating_point():
        return None
    for dtype in (torch.bfloat16, torch.float16):
        eps = torch.finfo(dtype).eps
        is_rounded = torch.equal(theirs.data, theirs.data.to(dtype).double())
        if is_rounded and not torch.equal(ours.data, ours.data.to(dtype).double()) and first.error < 8 * eps:
            return f"rounded to {str(dtype).removeprefix('torch.')} on the way"
    return None


def other_draws(found: Comparison, first: Difference) -> str | None:
    """A dropout has drawn other random numbers."""
    place = first.place
    kind = found.ours.modules.get(place.name, "")
    if place.kind == "output" and "Dropout" in kind:
        return "other random numbers: another seed or another number of draws before; repeat without dropout to go on"
    return None


def own_batch(found: Comparison, first: Difference) -> str | None:
    """A normalization sees one rank's samples."""
    if first.place.kind in ("output", "buffer") and _is_batch_norm(found, first.place):
        return "batch norm normalizes the batch that a rank or micro-batch has: SyncBatchNorm takes the global one"
    return None


def other_update(found: Comparison, first: Difference) -> str | None:
    """Gradients agree, and the optimizer makes something else of them."""
    place, ours, theirs = first.place, first.ours, first.theirs
    if place.kind == "optimizer state":
        if place.item == "step" and ours is not None and theirs is not None:
            counts = _number(float(ours.data)), _number(float(theirs.data))
            return f"steps are counted otherwise: {counts[0]} in A and {counts[1]} in B"
        return "the gradient agrees, and the state doesn't: reset, loaded for another parameter, or with other betas"
    if place.kind != "parameter" or ours is None or theirs is None or not ours.is_whole:
        return None
    if Place(place.step, "parameter gradient", place.name) not in found.ours.places:
        return "it is frozen: a moving average that is updated otherwise, or at another time"
    before = found.ours.places.get(Place(place.step - 1, "parameter", place.name)) or found.ours.places.get(
        Place(0, "start", place.name)
    )
    if before is None or before[0].value.data.shape != ours.data.shape:
        return None
    start = before[0].value.data.double()
    mine, other = ours.data - start, theirs.data - start
    if _near(theirs.data, start):
        return "the parameter isn't updated: it isn't among the optimizer's, or the update goes to a copy"
    size = float((mine * mine).sum())
    k = float((mine * other).sum()) / size if size else 0.0
    if k and _near(mine * k, other, 1e-2):
        return f"the update is {_number(k)} times A's: another learning rate, or a schedule that is stepped otherwise"
    rest = theirs.data - ours.data
    weight = float((rest * start).sum()) / float((start * start).sum()) if bool(start.any()) else 0.0
    if weight and _near(start * weight, rest, 1e-2):
        return f"weight decay differs: by {_number(abs(weight))} of the weight in this step"
    return "gradient and state agree, and the update differs: other settings of this parameter's group"


def other_start(found: Comparison, first: Difference) -> str | None:
    """The runs begin with other weights."""
    if first.place.kind != "start":
        return None
    if first.ours is not None and first.theirs is not None and first.ours.dtype != first.theirs.dtype:
        return (
            "the model is made in another dtype, in which random numbers are others: start from the same checkpoint, "
            "or use a mixed precision"
        )
    return "another seed, another order of initialization, or a checkpoint that isn't loaded"


def other_data(found: Comparison, first: Difference) -> str | None:
    """The runs read other samples."""
    if first.place.kind != "input":
        return None
    return "the sampler, its seed or epoch, shuffling, or which rank reads what"


CATALOGUE: tuple[Cause, ...] = (
    other_data,
    other_start,
    tie_broken,
    not_finite,
    left_out,
    stale,
    shards_moved,
    other_draws,
    own_batch,
    other_update,
    weighted_otherwise,
    scaled,
    micro_batches_lost,
    ranks_apart,
    lower_precision,
)
"""In the order in which they are said."""
OF_VALUES: tuple[Cause, ...] = (not_finite, shards_moved, scaled, lower_precision)
"""Those that look at the two values alone, without the steps that led to them."""


# What they share ------------------------------------------------------------------------------------


def _near(a: Tensor, b: Tensor, tolerance: float = CLOSE) -> bool:
    size = float(b.norm())
    return a.shape == b.shape and size > 0 and float((a - b).norm()) <= tolerance * size


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _is_batch_norm(found: Comparison, place: Place) -> bool:
    name = place.name.rpartition(".")[0] if place.kind == "buffer" else place.name
    return "BatchNorm" in found.ours.modules.get(name, "")


def _all_gradients_scaled(found: Comparison, first: Difference) -> bool:
    assert first.ratio is not None
    others = list(_gradients(found, first.place.step))
    return len(others) > 1 and all(
        each.ratio is not None and abs(each.ratio / first.ratio - 1) < 0.05 for each in others
    )


def _gradients(found: Comparison, step: int) -> Iterator[Difference]:
    return (d for d in found.differences if d.place.kind == "parameter gradient" and d.place.step == step)
