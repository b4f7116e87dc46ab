"""Compare two checkpoints tensor by tensor: equal to the bit, equal within rounding, or different."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from stratagem_convert.formats.stored import StoredTensor
from torch import Tensor

from stratagem.errors import UsageError
from stratagem_diff.assembling import GlobalValue
from stratagem_diff.checkpoints.opening import OF_OPTIMIZER, SavedState, open_state
from stratagem_diff.comparison import FLOOR, UNITS, Comparison, Difference
from stratagem_diff.files import ModelInfo, Place, RankRecord
from stratagem_diff.side import Side

MOST_ALLOWED = 1e-2
"""However many steps there were: a larger relative error is no rounding, unless the dtype is that coarse."""
LOOKED_AT = 2**24
"""Elements up to which the first tensor that differs is read whole, to find likely causes."""
CHANCE = 1e-3
"""Gradients that are so much smaller than all parameters' typical one are rounding alone."""
SQUARES = "exp_avg_sq"
"""State of Adam and its relatives: the mean of squared gradients."""


@dataclass
class CheckpointComparison(Comparison):
    """What comes of comparing two checkpoints. Places have the step 0."""

    exact: bool = False
    """Whether only tensors that are equal to the bit count as equal."""
    equal: int = 0
    """Number of tensors that are equal to the bit."""
    within_rounding: list[Difference] = field(default_factory=list)
    """Tensors that aren't equal to the bit, and are equal within rounding."""
    sides: tuple[str, str] = ("A", "B")
    """What A and B are, in a line each."""
    first_causes: list[str] = field(default_factory=list)
    """What only the checkpoints tell about the first difference."""


def compare_checkpoints(
    ours: str | os.PathLike[str], theirs: str | os.PathLike[str], *, exact: bool = False
) -> CheckpointComparison:
    """Compare two checkpoints, whatever strategies and numbers of ranks wrote them.

    Args:
        ours: folder or file of A, the reference; or the folder of a run, of which the last checkpoint is meant.
        theirs: of B, likewise.
        exact: whether tensors have to be equal to the bit.

    Raises:
        CheckpointError: one is missing or damaged.
        UsageError: the two have no tensor in common.
    """
    with ExitStack() as stack:
        a, b = (stack.enter_context(open_state(os.fspath(each))) for each in (ours, theirs))
        return _Comparing(a, b, exact).result()


@dataclass
class _Sums:
    """Sums over the elements of two tensors."""

    ours: float = 0.0
    theirs: float = 0.0
    distance: float = 0.0
    product: float = 0.0
    unequal: int = 0
    is_finite_alike: bool = True

    def add(self, a: Tensor, b: Tensor, left_out: Tensor | None) -> None:
        wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
        self.unequal += int((_bits(a) != _bits(b)).any(-1).sum()) if a.dtype == b.dtype else a.numel()
        a, b = a.to(wide), b.to(wide)
        finite = a.isfinite()
        same = (a == b) | (a.isnan() & b.isnan())
        self.is_finite_alike &= bool((same | (finite & b.isfinite())).all())
        kept = finite & b.isfinite() if left_out is None else finite & b.isfinite() & ~left_out
        a, b = (each.where(kept, torch.zeros_like(each)) for each in (a, b))
        self.ours += float((a * a.conj()).real.sum())
        self.theirs += float((b * b.conj()).real.sum())
        self.distance += float(((a - b) * (a - b).conj()).real.sum())
        self.product += float((a.conj() * b).real.sum())

    @property
    def error(self) -> float:
        """Norm of the difference over the larger norm."""
        size = max(self.ours, self.theirs)
        return math.inf if not self.is_finite_alike else math.sqrt(self.distance / size) if size else 0.0

    @property
    def ratio(self) -> float | None:
        return self.product / self.ours if self.ours and self.is_finite_alike else None

    def is_proportional(self, tolerance: float) -> bool:
        if not self.ratio:
            return False
        rest = self.theirs - self.product * self.ratio
        return rest <= (max(tolerance, 1e-4) ** 2) * self.theirs


class _Comparing:
    def __init__(self, a: SavedState, b: SavedState, exact: bool) -> None:
        self._a, self._b = a, b
        sides = a.describe(), b.describe()
        self._found = CheckpointComparison(_side(a, "A"), _side(b, "B"), exact=exact, sides=sides)
        self._count = sum(place.kind != OF_OPTIMIZER for place in a.tensors)
        self._typical: float | None = None
        self._dtypes: list[str] = []
        self._chance: list[str] = []

    def result(self) -> CheckpointComparison:
        found, a, b = self._found, self._a, self._b
        if not a.tensors or not b.tensors:
            empty = b if a.tensors else a
            raise UsageError(f"{empty.path} has no tensors of a model: there is nothing to compare")
        for place in a.tensors:
            if place in b.tensors:
                self._compare(place)
            elif not self._is_of_no_optimizer(b, place):
                self._missing(place, "B has no such tensor")
        for place in b.tensors:
            if place not in a.tensors and not self._is_of_no_optimizer(a, place):
                self._missing(place, "A has no such tensor")
        if not found.compared and self._prefix() is None:
            first, other = (next(iter(each.tensors)).name for each in (a, b))
            raise UsageError(
                f"the checkpoints have no tensor in common: A's first is {first!r} and B's {other!r}"
            )
        self._say_facts()
        if found.first is not None:
            self._look_at_first(found.first)
        return found

    def _is_of_no_optimizer(self, state: SavedState, place: Place) -> bool:
        return place.kind == OF_OPTIMIZER and not any(each.kind == OF_OPTIMIZER for each in state.tensors)

    # One tensor ---------------------------------------------------------------------------------

    def _compare(self, place: Place) -> None:
        found = self._found
        one, other = self._a.tensors[place], self._b.tensors[place]
        found.compared += 1
        if tuple(one.shape) != tuple(other.shape):
            note = f"its shape is {list(one.shape)} in A and {list(other.shape)} in B"
            self._differ(Difference(place, math.inf, 0.0, None, False, (0,), note=note))
            return
        if one.dtype != other.dtype:
            self._dtypes.append(f"{place.name!r} is {_name(one.dtype)} in A and {_name(other.dtype)} in B")
        sums = self._sums(place)
        allowed = self._allowed(place, one.dtype, other.dtype)
        if sums.error > allowed and place.kind == "parameter":
            rest = self._sums(place, without_chance=True)
            if rest.error <= allowed and rest.is_finite_alike:
                sums = replace(rest, unequal=sums.unequal)
                self._chance.append(place.name)
        found.errors[place] = (sums.error, allowed)
        if not sums.unequal:
            found.equal += 1
            return
        difference = Difference(place, sums.error, allowed, sums.ratio, sums.is_proportional(allowed), (0,))
        if sums.error > allowed or found.exact:
            self._differ(difference)
        else:
            found.within_rounding.append(difference)

    def _sums(self, place: Place, *, without_chance: bool = False) -> _Sums:
        sums = _Sums()
        sources = [(self._a, place), (self._b, place)]
        squares = self._squares_of(place) if without_chance else []
        if without_chance and not squares:
            return replace(sums, is_finite_alike=False)
        threshold = (CHANCE * self._typical_gradient()) ** 2 if squares else 0.0
        for a, b, *others in self._a.blocks([*sources, *squares]):
            left_out = None
            if others:
                left_out = torch.stack([each.to(a.device) < threshold for each in others]).any(0)
            sums.add(a, b, left_out)
        return sums

    def _squares_of(self, place: Place) -> list[tuple[SavedState, Place]]:
        shape = tuple(self._a.tensors[place].shape)
        found = [
            (state, each)
            for state in (self._a, self._b)
            for each in state.tensors
            if (each.kind, each.name, each.item) == (OF_OPTIMIZER, place.name, SQUARES)
            and tuple(state.tensors[each].shape) == shape
        ]
        return found if len(found) == 2 else []

    def _typical_gradient(self) -> float:
        """Root mean square of all gradients of A, as far as Adam's states tell it."""
        if self._typical is None:
            total, count = 0.0, 0
            for place in self._a.tensors:
                if place.item == SQUARES:
                    for (block,) in self._a.blocks([(self._a, place)]):
                        total, count = total + float(block.double().sum()), count + block.numel()
            self._typical = math.sqrt(total / count) if count and total > 0 else 0.0
        return self._typical

    def _allowed(self, place: Place, one: torch.dtype, other: torch.dtype) -> float:
        """How far rounding alone may take two runs of the same training."""
        if not (one.is_floating_point and other.is_floating_point):
            return 0.0
        eps = max(torch.finfo(one).eps, torch.finfo(other).eps)
        steps = max(self._a.step or 0, self._b.step or 0)
        units = UNITS * math.sqrt(1 + self._count) if place.kind == OF_OPTIMIZER else FLOOR
        return max(FLOOR * eps, min(units * eps * math.sqrt(1 + steps), MOST_ALLOWED))

    def _missing(self, place: Place, note: str) -> None:
        self._differ(Difference(place, math.inf, 0.0, None, False, (0,), note=note))

    def _differ(self, difference: Difference) -> None:
        if not self._found.differences:
            self._found.equal_before = self._found.equal + len(self._found.within_rounding)
        self._found.differences.append(difference)

    # What is said besides ------------------------------------------------------------------------

    def _say_facts(self) -> None:
        a, b, notes = self._a, self._b, self._found.notes
        for label, state, rest in (("A", a, b), ("B", b, a)):
            if any(self._is_of_no_optimizer(state, place) for place in rest.tensors):
                notes.append(f"{label} has no optimizer states: those of the other weren't compared")
        if self._dtypes:
            more = (
                f", and {len(self._dtypes) - 1} more tensors differ in dtype" if len(self._dtypes) > 1 else ""
            )
            notes.append(f"{self._dtypes[0]}{more}")
        if self._chance:
            many = "s" if len(self._chance) > 1 else ""
            notes.append(
                f"elements of {len(self._chance)} parameter{many}, first {self._chance[0]!r}, weren't compared: "
                "rounding alone decides their gradients, and Adam makes a full step from the smallest gradient"
            )
        for index, (one, other) in enumerate(zip(a.settings, b.settings)):
            for key in one:
                if key in other and repr(one[key]) != repr(other[key]):
                    notes.append(f"{key} of parameter group {index} is {one[key]} in A and {other[key]} in B")
        notes += [f"tie broken: {text}" for _, text in self._broken_ties()]

    def _broken_ties(self) -> Iterator[tuple[set[str], str]]:
        """Yield names that are one tensor in only one of the two, and what is said of them."""
        a, b = self._a, self._b
        names = [{place.name for place in state.tensors} for state in (a, b)]
        for name, kept in {**a.aliases, **b.aliases}.items():
            is_one = [_kept_by(state, name) == _kept_by(state, kept) for state in (a, b)]
            if is_one[0] != is_one[1] and all({name, kept} <= each for each in names):
                label = "AB"[is_one[0]]
                yield {name, kept}, f"{name!r} and {kept!r} are one tensor, and in {label} they are two"

    def _look_at_first(self, first: Difference) -> None:
        """Read the first tensor that differs, and find causes that only checkpoints have."""
        found, place = self._found, first.place
        steps = self._a.step, self._b.step
        if None not in steps and steps[0] != steps[1]:
            found.first_causes.append(
                f"other moments of a training: A is of step {steps[0]} and B of step {steps[1]}"
            )
        prefix = self._prefix()
        if prefix is not None:
            found.first_causes.append(prefix)
        found.first_causes += [
            f"tie broken: {text}" for names, text in self._broken_ties() if place.name in names
        ]
        one, other = (state.tensors.get(place) for state in (self._a, self._b))
        if one is None or other is None:
            found.first_causes += self._renamed(place)
            return
        if max(_numel(one), _numel(other)) > LOOKED_AT:
            return
        mine, theirs = self._a.whole(place), self._b.whole(place)
        if mine.dtype != theirs.dtype:
            found.first_causes.append(
                f"the dtype was changed: {_name(mine.dtype)} in A and {_name(theirs.dtype)} in B"
            )
        if mine.dim() == 2 and mine.shape == theirs.T.shape != theirs.shape and _is_near(mine.T, theirs):
            found.first_causes.append("transposed")
        if mine.shape == theirs.shape:
            values = [GlobalValue(each.double(), tuple(each.shape), each.dtype) for each in (mine, theirs)]
            index = found.differences.index(first)
            found.differences[index] = replace(first, ours=values[0], theirs=values[1])
            found.first_causes += self._exchanged(place, theirs)

    def _exchanged(self, place: Place, theirs: Tensor) -> list[str]:
        """Whether B has under this name what A has under another one."""
        for each in self._equal_elsewhere(self._a, place, theirs):
            return [f"exchanged: B's is A's {_what(each)}"]
        return []

    def _renamed(self, place: Place) -> list[str]:
        state, rest, label = (self._a, self._b, "B") if place in self._a.tensors else (self._b, self._a, "A")
        if _numel(state.tensors[place]) > LOOKED_AT:
            return []
        for each in self._equal_elsewhere(rest, place, state.whole(place)):
            if each not in state.tensors:
                return [f"renamed: {label} has the same values as {_what(each)}"]
        return []

    def _equal_elsewhere(self, state: SavedState, place: Place, wanted: Tensor) -> list[Place]:
        if wanted.numel() < 2 or bool((wanted == wanted.reshape(-1)[0]).all()):
            return []  # as zeros and ones, which many tensors are
        return [
            each
            for each, stored in state.tensors.items()
            if each != place
            and (each.kind == OF_OPTIMIZER) == (place.kind == OF_OPTIMIZER)
            and (tuple(stored.shape), stored.dtype) == (tuple(wanted.shape), wanted.dtype)
            and torch.equal(state.whole(each), wanted)
        ]

    def _prefix(self) -> str | None:
        """Say that one side's names are the other's with something before them."""
        ours, theirs = (
            [place.name for place in each.tensors if place.kind != OF_OPTIMIZER]
            for each in (self._a, self._b)
        )
        for label, longer, shorter in (("B", theirs, ours), ("A", ours, theirs)):
            for name in longer[:1]:
                ends = [each for each in shorter if name != each and name.endswith(f".{each}")]
                prefix = name.removesuffix(max(ends, key=len)) if ends else ""
                if prefix and all(f"{prefix}{each}" in longer for each in shorter):
                    return (
                        f"renamed: {label}'s names begin with {prefix!r}; `stratagem checkpoint diff --rename` "
                        "compares under other names"
                    )
        return None


def _side(state: SavedState, label: str) -> Side:
    modules: dict[str, str] = {"": ""}
    for place in state.tensors:
        parts = place.name.split(".")[:-1]
        modules.update({".".join(parts[: count + 1]): "" for count in range(len(parts))})
    model = ModelInfo(modules, state.aliases)
    size = state.world_size
    return Side([RankRecord(rank, size, 0, model, state.facts, ()) for rank in range(size)], label)


def _kept_by(state: SavedState, name: str) -> str:
    return state.aliases.get(name, name)


def _what(place: Place) -> str:
    return f"{place.item!r} of {place.name!r}" if place.item else repr(place.name)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _numel(tensor: StoredTensor | Tensor) -> int:
    return math.prod(tensor.shape)


def _bits(block: Tensor) -> Tensor:
    """The bytes of each element."""
    return block.contiguous().reshape(-1).view(torch.uint8).view(block.numel(), block.element_size())


def _is_near(a: Tensor, b: Tensor) -> bool:
    a, b = a.double(), b.double()
    return bool(b.norm() > 0) and float((a - b).norm() / b.norm()) < 1e-3
