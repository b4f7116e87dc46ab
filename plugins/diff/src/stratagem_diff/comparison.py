"""Compare the values of two runs, place by place."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from stratagem.errors import UsageError
from stratagem_diff.assembling import GlobalValue, of_batch, of_parameter
from stratagem_diff.files import KINDS, Place, read_record
from stratagem_diff.layout import Layout, Layouts, lay_out
from stratagem_diff.non_finite import NonFinite, first_non_finite
from stratagem_diff.side import LocalValue, Side

NOISE = 8.0
"""Factor on the measured rounding error: values that are further apart differ."""
UNITS = 8.0
"""Without a measurement: units in the last place, times the square root of the number of values computed before."""
FLOOR = 4.0
"""Units in the last place that are always allowed, relative to a value's norm."""
OUTLIER = 30.0
"""Elements that another rounding moves this many times as far as the median element aren't compared."""

_OF_BATCH = ("output", "output gradient")


@dataclass(frozen=True)
class Difference:
    """A place at which the runs differ by more than rounding."""

    place: Place
    error: float
    """Norm of the difference over the larger of the two norms; infinite where one side lacks the value."""
    allowed: float
    """The error that rounding explains there."""
    ratio: float | None
    """Factor from A's value to B's, by least squares; None where there is none."""
    is_proportional: bool
    """Whether B's value is A's times `ratio`, to within rounding."""
    ranks: tuple[int, ...]
    """Ranks of B that have it."""
    how: str = ""
    """How ranks' local values were put together."""
    note: str = ""
    """Why it differs, where that is known at once."""
    ours: GlobalValue | None = None
    theirs: GlobalValue | None = None


@dataclass
class Comparison:
    """The result of comparing two runs."""

    ours: Side
    theirs: Side
    steps: int = 0
    """Number of steps that were compared."""
    compared: int = 0
    """Number of values that were compared."""
    equal_before: int = 0
    """Number of values that agreed before the first difference."""
    differences: list[Difference] = field(default_factory=list)
    """In the order in which the values come about."""
    errors: dict[Place, tuple[float, float]] = field(default_factory=dict)
    """Place → (error, allowed) of all that were compared."""
    notes: list[str] = field(default_factory=list)
    """What wasn't compared, and why; what was assumed."""
    layouts: dict[int, Layouts] = field(default_factory=dict)
    """How the batches of both sides correspond, by step."""
    measured: bool = False
    """Whether rounding was measured, by a run with another rounding."""
    non_finite: dict[str, NonFinite] = field(default_factory=dict)
    """Side → the first value of it that isn't finite, where its gradients or parameters aren't."""

    @property
    def first(self) -> Difference | None:
        """The first place that differs."""
        return self.differences[0] if self.differences else None


def compare(
    ours: str | os.PathLike[str],
    theirs: str | os.PathLike[str],
    rounding: Sequence[str | os.PathLike[str]] = (),
) -> Comparison:
    """Compare two records.

    Args:
        ours: folder of the reference: A.
        theirs: folder of the record that is compared with it: B.
        rounding: folders of records of A, or of A and B, with another rounding (`RecordOptions.rounding`).

    Raises:
        UsageError: a record is damaged or isn't complete, or the two have nothing in common.
    """
    a, b = Side(read_record(ours), "A"), Side(read_record(theirs), "B")
    noise = [Side(read_record(each), "rounding") for each in rounding]
    for side, folder in ((a, ours), (b, theirs)):
        if side.steps < 1:
            raise UsageError(_without_steps(side, os.fspath(folder)))
    if len(noise) > 2:
        raise UsageError(f"got {len(noise)} records of another rounding: at most one of each side")
    return _Comparing(a, b, noise).result()


def _without_steps(side: Side, folder: str) -> str:
    stepped = [record for record in side.ranks if record.steps]
    if not stepped:
        return f"the record {folder} has no optimizer step: record until after optimizer.step()"
    other = next(record for record in side.ranks if not record.steps)
    return (
        f"rank {other.rank} of the record {folder} made no optimizer step, and rank {stepped[0].rank} made "
        f"{stepped[0].steps}: step on all ranks"
    )


class _Comparing:
    def __init__(self, ours: Side, theirs: Side, noise: Sequence[Side]) -> None:
        self._ours, self._theirs = ours, theirs
        self._noise = dict(zip((0, 1), noise))
        self._found = Comparison(ours, theirs, measured=bool(noise))
        self._rounding_alone: dict[str, Tensor] = {}
        """Parameter → which of its elements have had a gradient that was rounding alone."""
        self._usual: dict[tuple[int, str, str], float] = {}
        """(step, kind, state) → the rounding error that such values usually have."""
        self._moved_by_chance: set[str] = set()
        """Parameters of which such elements differ after an update."""
        self._coarsest = 0.0
        """Unit in the last place of the coarsest values so far: autocast leaves their error in float32 gradients."""
        self._before: dict[str, Tensor] = {}
        """Parameter → its last value in A."""

    def result(self) -> Comparison:
        found, a, b = self._found, self._ours, self._theirs
        if not set(a.modules) & set(b.modules) and not set(a.places) & set(b.places):
            raise UsageError(
                f"the records have no module in common: A's first is {_first(a)!r} and B's {_first(b)!r}"
            )
        if a.first_step != b.first_step:
            raise UsageError(f"A's record begins with step {a.first_step} and B's with step {b.first_step}")
        found.steps = min(a.steps, b.steps)
        if a.steps != b.steps:
            found.notes.append(f"A has {a.steps} steps and B {b.steps}: {found.steps} were compared")
        self._say_facts()
        for side in (a, b):
            first = first_non_finite(side)
            if first is not None:
                found.non_finite[side.label] = first
        for step in (0, *range(a.first_step, a.first_step + found.steps)):
            moved_before = [] if found.differences or self._noise else sorted(self._moved_by_chance)
            self._compare_step(step)
            if found.differences and moved_before:
                # What follows from a step that rounding decides can't be distinguished from a fault by an estimate.
                found.differences.clear()
                found.notes.append(
                    f"steps from {step} on weren't compared: rounding alone decides the update of "
                    f"{moved_before[0]!r}, and values differ after it; measure rounding to compare them"
                )
                found.steps = step - a.first_step
                break
        return found

    def _say_facts(self) -> None:
        a, b = self._ours.facts, self._theirs.facts
        for key, text in (("torch", "torch"), ("dropout", "dropout"), ("seed", "the seed")):
            if a.get(key) != b.get(key):
                self._found.notes.append(f"{text} is {a.get(key)} in A and {b.get(key)} in B")

    def _compare_step(self, step: int) -> None:
        found = self._found
        layouts = lay_out(self._ours, self._theirs, step) if step else Layouts(Layout(()), Layout(()))
        found.layouts[step] = layouts
        if layouts.is_difference:
            place = next(each for each in self._ours.of_step(step) if each.kind == "input")
            self._differ(
                Difference(place, math.inf, 0.0, None, False, self._all_ranks(), note=layouts.problem)
            )
        elif layouts.problem:
            found.notes.append(f"step {step}: values of modules weren't compared: {layouts.problem}")
        if step:
            layouts = found.layouts[step] = self._with_factors(step, layouts)
        others = self._theirs.places
        one_sided: list[Place] = []
        for number, place in enumerate(self._ours.of_step(step)):
            if place.kind == "input" or (layouts.problem and place.kind in _OF_BATCH):
                continue
            if place not in others:
                one_sided.append(place)
                if place.kind == "parameter gradient" and self._has_parameter(self._theirs, place.name):
                    note = "B has no gradient of it"
                    self._differ(Difference(place, math.inf, 0.0, 0.0, False, self._all_ranks(), note=note))
                if place.kind == "parameter" and self._has_parameter(self._theirs, place.name):
                    note = "nothing changes it in B"
                    self._differ(Difference(place, math.inf, 0.0, None, False, self._all_ranks(), note=note))
                continue
            self._compare_place(place, layouts, number)
        for place in self._theirs.of_step(step):
            is_gradient = place.kind == "parameter gradient" and place not in self._ours.places
            if is_gradient and self._has_parameter(self._ours, place.name):
                note = "A has no gradient of it"
                self._differ(Difference(place, math.inf, 0.0, None, False, self._all_ranks(), note=note))
        modules = sorted({place.name for place in one_sided if place.kind == "output"})
        if modules and step == self._ours.first_step:
            listed = ", ".join(modules[:3]) + (f" and {len(modules) - 3} more" if len(modules) > 3 else "")
            found.notes.append(f"B has no values of modules that A has: {listed}")

    def _has_parameter(self, side: Side, name: str) -> bool:
        return Place(0, "start", name) in side.places

    def _all_ranks(self) -> tuple[int, ...]:
        return tuple(range(self._theirs.world_size))

    def _with_factors(self, step: int, layouts: Layouts) -> Layouts:
        """Find the scale of each group's loss: a mean over a rank's own samples makes its gradients larger."""
        if layouts.problem or layouts.ours.dim is None:
            return layouts
        for place in self._ours.of_step(step):
            if place.kind != "output gradient" or place not in self._theirs.places:
                continue
            ours_finer = len(layouts.ours.groups) > len(layouts.theirs.groups)
            finer = layouts.ours if ours_finer else layouts.theirs
            pairs = [pair if ours_finer else pair[::-1] for pair in self._pairs(place, layouts)]
            # Values of samples alone have a factor per group: a mean of groups would hide it.
            pairs = [pair for pair in pairs if pair[0].dim is not None or len(finer.groups) == 1]
            if not pairs:
                continue
            fine, coarse = min(pairs, key=lambda pair: _error(*pair))
            if fine.data.shape != coarse.data.shape:
                continue
            factors = _factors(fine, coarse, finer)
            if factors is None:
                continue
            made = replace(finer, factors=factors)
            return replace(layouts, ours=made) if ours_finer else replace(layouts, theirs=made)
        return layouts

    # One place ---------------------------------------------------------------------------------

    def _wholes(
        self, place: Place, side: int, layouts: Layouts, local_values: Sequence[LocalValue]
    ) -> list[GlobalValue]:
        other = (self._theirs, self._ours)[side].places.get(place, [])
        if place.kind in _OF_BATCH:
            layout = layouts.theirs if side else layouts.ours
            return list(of_batch(local_values, layout, is_gradient=place.kind == "output gradient"))
        shape = other[0].value.global_shape if other else local_values[0].value.global_shape
        return list(of_parameter(local_values, shape))

    def _pairs(self, place: Place, layouts: Layouts) -> Iterator[tuple[GlobalValue, GlobalValue]]:
        mine = self._wholes(place, 0, layouts, self._ours.places[place])
        others = self._wholes(place, 1, layouts, self._theirs.places[place])
        for one in mine:
            for other in others:
                if one.shape == other.shape:
                    yield one, other

    def _closest(self, place: Place, layouts: Layouts) -> tuple[GlobalValue, GlobalValue] | None:
        return min(self._pairs(place, layouts), key=lambda pair: _largest_error(*pair), default=None)

    def _compare_place(self, place: Place, layouts: Layouts, number: int) -> None:
        found = self._found
        pair = self._closest(place, layouts)
        if pair is None:
            a, b = (side.places[place][0].value.shape for side in (self._ours, self._theirs))
            if place.kind in (*_OF_BATCH, "buffer", "optimizer state"):
                found.notes.append(
                    f"step {place.step}: {place.kind} of {place.name!r} wasn't compared: a rank of A has "
                    f"{list(a)} and one of B {list(b)}, and nothing says how they make up the same value"
                )
            else:
                note = f"its shape is {list(a)} in A and {list(b)} in B"
                self._differ(Difference(place, math.inf, 0.0, None, False, self._all_ranks(), note=note))
            return
        one, other = self._without_chance(place, layouts, *pair, number)
        allowed = self._allowed(place, layouts, one, other, number)
        error = _error(one, other)
        rank_copies = [(_distance(_data(one, other)[0], copy), copy) for _, copy in _rank_copies(one, other)]
        if rank_copies:
            error, worst = max(rank_copies, key=lambda each: each[0])
        if error > allowed and place.step > self._ours.first_step:
            allowed = max(allowed, NOISE * self._usual_noise(place, layouts))
        ranks = _ranks_that_differ(one, other, allowed)
        if rank_copies:
            other = replace(other, data=worst)
        found.compared += 1
        found.errors[place] = (error, allowed)
        if error <= allowed:
            return
        ratio = _ratio(one, other)
        mine, theirs = _data(one, other)
        proportional = (
            ratio is not None and ratio != 0 and _distance(mine * ratio, theirs) <= max(allowed, 1e-4)
        )
        how = "; ".join(
            dict.fromkeys(f"{label}: {w.how}" for label, w in (("A", one), ("B", other)) if w.how)
        )
        self._differ(
            Difference(
                place, error, allowed, ratio, proportional, ranks or self._all_ranks(), how, "", one, other
            )
        )

    def _differ(self, difference: Difference) -> None:
        if not self._found.differences:
            self._found.equal_before = sum(error <= allowed for error, allowed in self._found.errors.values())
        self._found.differences.append(difference)

    # What rounding comes to ------------------------------------------------------------------------

    def _allowed(
        self, place: Place, layouts: Layouts, one: GlobalValue, other: GlobalValue, number: int
    ) -> float:
        """How far rounding alone may take the two, relative to the larger norm."""
        eps = max(_eps(one), _eps(other))
        measured = [self._noise_at(place, layouts, side, whole) for side, whole in enumerate((one, other))]
        noises = [each for each in measured if each is not None]
        # A lower precision of B alone is a difference, unless its rounding is measured, too.
        computed_in = max(eps, self._computed_in(place, one, eps if 1 in self._noise else _eps(one)))
        if not place.step:
            return NOISE * max(noises, default=0.0) + FLOOR * eps
        estimate = UNITS * math.sqrt(1 + number) * (place.step - self._ours.first_step + 1)
        if place.kind == "parameter gradient":
            size = max(_norm(one.data), _norm(other.data))
            typical = self._typical(place.step) * math.sqrt(one.data.numel())
            estimate *= max(1.0, typical / size) if size else 1.0
        if not noises:
            return estimate * computed_in
        # By chance, the run with another rounding may hardly move a few elements: the fewer, the more counts the
        # estimate. In a coarse dtype they may not move at all.
        doubt = 1 / math.sqrt(max(1, int((one.data != 0).sum())))
        return NOISE * max(noises) + FLOOR * eps + doubt * (estimate * eps + FLOOR * (computed_in - eps))

    def _computed_in(self, place: Place, one: GlobalValue, eps: float) -> float:
        """The unit in the last place, relative to a value, of what the value has been computed from."""
        if place.kind in _OF_BATCH:
            self._coarsest = max(self._coarsest, eps)
        if place.kind not in ("start", "parameter"):
            return self._coarsest
        before = self._before.get(place.name)
        self._before[place.name] = one.data
        size = _norm(one.data)
        if before is None or before.shape != one.data.shape or not size:
            return eps
        return self._coarsest * _norm(one.data - before) / size

    def _noise_at(self, place: Place, layouts: Layouts, side: int, whole: GlobalValue) -> float | None:
        same = self._other_rounding(place, layouts, side, whole)
        if same is None:
            return None
        # Elements that were left out are 0.
        return _error(whole, replace(same, data=same.data * (whole.data != 0)) if whole.is_whole else same)

    def _usual_noise(self, place: Place, layouts: Layouts) -> float:
        """The median of the rounding errors that were measured of such values in the step; 0 without a measurement.

        One run with another rounding may come close to A at a place by chance: the mean of squared gradients is that
        of a few large ones. After the first step, errors are those of whole updates, and this is no rare chance.
        """
        key = (place.step, place.kind, place.item if place.kind == "optimizer state" else "")
        if key not in self._usual:
            found = []
            for each in self._ours.of_step(place.step):
                item = each.item if each.kind == "optimizer state" else ""
                if (each.step, each.kind, item) == key and each in self._theirs.places:
                    pair = self._closest(each, layouts)
                    noise = None if pair is None else self._noise_at(each, layouts, 0, pair[0])
                    found += [] if noise is None or not math.isfinite(noise) else [noise]
            self._usual[key] = statistics.median(found) if found else 0.0
        return self._usual[key]

    def _other_rounding(
        self, place: Place, layouts: Layouts, side: int, whole: GlobalValue
    ) -> GlobalValue | None:
        """The value in the run with another rounding, put together in the same way."""
        noise = self._noise.get(side)
        if noise is None or place not in noise.places:
            return None
        layout = (layouts.ours, layouts.theirs)[side]
        local_values = noise.places[place]
        if place.kind in _OF_BATCH:
            made = list(of_batch(local_values, layout, is_gradient=place.kind == "output gradient"))
        else:
            made = list(of_parameter(local_values, whole.shape))
        return next((each for each in made if each.how == whole.how and each.shape == whole.shape), None)

    def _without_chance(
        self, place: Place, layouts: Layouts, one: GlobalValue, other: GlobalValue, number: int
    ) -> tuple[GlobalValue, GlobalValue]:
        """Set elements to 0 that rounding alone decides: Adam makes a full step from the smallest gradient."""
        if place.kind not in ("parameter gradient", "optimizer state", "parameter") or not one.is_whole:
            return one, other
        if one.data.shape != other.data.shape:
            return one, other
        noisy = self._other_rounding(place, layouts, 0, one)
        moved = None if noisy is None else (noisy.data - one.data).abs()
        if place.kind == "parameter gradient":
            self._keep_chance(place, one, other, moved, number)
        known = self._rounding_alone.get(place.name)
        chance = torch.zeros(one.shape, dtype=torch.bool)
        if known is not None and known.shape == chance.shape and place.kind != "parameter gradient":
            chance = known
        if moved is not None:
            eps = torch.finfo(one.dtype).eps
            chance = chance | (moved > OUTLIER * (moved.median() + eps * one.data.abs()))
        if not bool(chance.any()):
            return one, other
        if place.kind == "parameter" and not torch.equal(one.data[chance], other.data[chance]):
            self._moved_by_chance.add(place.name)
        kept = (~chance).double()
        rank_copies = tuple(
            (rank, copy * kept) for rank, copy in other.rank_copies if copy.shape == kept.shape
        )
        return replace(one, data=one.data * kept), replace(
            other, data=other.data * kept, rank_copies=rank_copies
        )

    def _keep_chance(
        self, place: Place, one: GlobalValue, other: GlobalValue, moved: Tensor | None, number: int
    ) -> None:
        """Keep which elements have a gradient as small as rounding: a key's bias in attention has none."""
        if moved is None:
            eps = torch.finfo(one.dtype).eps
            threshold = 100 * UNITS * eps * math.sqrt(1 + number) * self._typical(place.step)
        else:
            threshold = OUTLIER * float(moved.median())
        sizes = torch.minimum(one.data.abs(), other.data.abs())
        # What has no gradient on either side, as a row of an embedding, is moved by no rounding.
        small = (sizes <= threshold) & ((one.data != 0) | (other.data != 0))
        known = self._rounding_alone.get(place.name)
        self._rounding_alone[place.name] = (
            small if known is None or known.shape != small.shape else small | known
        )

    def _typical(self, step: int) -> float:
        """Root mean square of all gradients of parameters in a step of A."""
        total = count = 0.0
        for place in self._ours.of_step(step):
            if place.kind == "parameter gradient":
                for local in self._ours.places[place][:1]:
                    total += float(local.value.data.double().square().sum())
                    count += local.value.data.numel()
        return math.sqrt(total / count) if count else 0.0


def _factors(fine: GlobalValue, coarse: GlobalValue, layout: Layout) -> tuple[float, ...] | None:
    """Return the factor from each group's gradients to those of the other side."""
    if len(layout.groups) == 1:
        scale = _ratio(fine, coarse)
        return (scale,) if scale else None
    if fine.dim is None or len(fine.lengths) != len(layout.groups):
        return None
    per_group: list[float] = []
    # Groups lie one after the other before they are put into the other side's order.
    index = torch.arange(sum(fine.lengths))
    if layout.order is not None:
        times = len(index) // layout.length
        index = (layout.order[:, None] * times + torch.arange(times)).reshape(-1)
    for rows in torch.tensor_split(index, [*itertools.accumulate(fine.lengths)][:-1]):
        a, b = (each.data.index_select(fine.dim, rows) for each in (fine, coarse))
        square = float((a * a).sum())
        if not square or not math.isfinite(square):
            return None
        per_group.append(float((a * b).sum()) / square)
    return tuple(per_group) if per_group and all(per_group) else None


def _data(one: GlobalValue, other: GlobalValue) -> tuple[Tensor, Tensor]:
    """The two in the same form."""
    if one.is_whole == other.is_whole:
        return one.data, other.data
    return one.projected(), other.projected()


def _rank_copies(one: GlobalValue, other: GlobalValue) -> list[tuple[int, Tensor]]:
    """Each rank's own copy, where ranks have copies of the same form as the values."""
    shape = _data(one, other)[1].shape
    return [(rank, copy) for rank, copy in other.rank_copies if copy.shape == shape]


def _error(one: GlobalValue, other: GlobalValue) -> float:
    return _distance(*_data(one, other))


def _eps(whole: GlobalValue) -> float:
    return torch.finfo(whole.dtype).eps


def _largest_error(one: GlobalValue, other: GlobalValue) -> float:
    """The error of the copy that is furthest away: the first of several samples may be close, and is no copy."""
    ours = _data(one, other)[0]
    return max([_error(one, other), *(_distance(ours, copy) for _, copy in _rank_copies(one, other))])


def _distance(a: Tensor, b: Tensor) -> float:
    """Norm of the difference over the larger norm; infinite where other elements aren't finite."""
    if a.shape != b.shape:
        return math.inf
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return math.inf
    if not bool(finite.all()):
        a, b = (each.where(finite, torch.zeros_like(each)) for each in (a, b))
    size = max(_norm(a), _norm(b))
    return _norm(a - b) / size if size else 0.0


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.double()))


def _ratio(one: GlobalValue, other: GlobalValue) -> float | None:
    a, b = _data(one, other)
    square = float((a * a).sum())
    if not square or not math.isfinite(square) or not bool(b.isfinite().all()):
        return None
    return float((a * b).sum()) / square


def _ranks_that_differ(one: GlobalValue, other: GlobalValue, allowed: float) -> tuple[int, ...]:
    a, b = _data(one, other)
    rank_copies = _rank_copies(one, other)
    if rank_copies:
        return tuple(rank for rank, copy in rank_copies if _distance(a, copy) > allowed)
    if (
        other.owners
        and other.dim is not None
        and a.shape == b.shape
        and a.shape[other.dim] == len(other.owners)
    ):
        by_index = (a - b).movedim(other.dim, 0).reshape(len(other.owners), -1).norm(dim=1)
        size = max(_norm(a), _norm(b))
        bad: dict[int, float] = {}
        for rank, error in zip(other.owners, by_index.tolist()):
            bad[rank] = math.hypot(bad.get(rank, 0.0), error)
        return tuple(sorted(rank for rank, error in bad.items() if not error <= allowed * size))
    return ()


def _first(side: Side) -> str:
    return next((name for name in side.modules if name), "")


assert set(_OF_BATCH) < set(KINDS)
