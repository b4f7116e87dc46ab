"""Whether boxes make up a whole without gap or overlap."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where it begins and where it ends, one number per dim."""


def is_tiled(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether each element of a tensor of this shape lies in exactly one of `boxes`, none of which is empty.

    Boxes must result from repeated straight cuts through the tensor, as shards over a mesh do. For boxes that
    interlock like a pinwheel, the result is False.
    """
    left = [((tuple(0 for _ in shape), tuple(shape)), list(boxes))]
    while left:
        whole, parts = left.pop()
        if parts == [whole]:
            continue
        dim, runs = _cut(parts, len(shape))
        at = whole[0][dim] if runs else -1
        for begin, end, run in runs:
            if begin != at:
                return False
            at = end
            left.append(((_with(whole[0], dim, begin), _with(whole[1], dim, end)), run))
        if not runs or at != whole[1][dim]:
            return False
    return True


def _cut(parts: list[Box], dims: int) -> tuple[int, list[tuple[int, int, list[Box]]]]:
    """Return the first dim along which `parts` form non-overlapping runs, and each run's begin, end and parts."""
    for dim in range(dims):
        runs: list[tuple[int, int, list[Box]]] = []
        for part in sorted(parts, key=lambda box: box[0][dim]):
            begin, end = part[0][dim], part[1][dim]
            if runs and begin < runs[-1][1]:
                runs[-1][2].append(part)
                runs[-1] = (runs[-1][0], max(end, runs[-1][1]), runs[-1][2])
            else:
                runs.append((begin, end, [part]))
        if len(runs) > 1:
            return dim, runs
    return 0, []


def _with(point: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*point[:dim], value, *point[dim + 1 :])
