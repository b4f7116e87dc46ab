import itertools
import random

import pytest
from stratagem_checkpoint import tiling
from stratagem_checkpoint.tiling import is_tiled


def boxes_of(cuts):
    """All cells of a grid, of the places where each dim is cut."""
    spans = [list(itertools.pairwise(places)) for places in cuts]
    return [
        (tuple(begin for begin, _ in cell), tuple(end for _, end in cell))
        for cell in itertools.product(*spans)
    ]


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((), [((), ())]),
        ((5,), [((0,), (5,))]),
        ((5, 7), boxes_of([[0, 3, 5], [0, 7]])),
        ((5, 7), boxes_of([[0, 3, 5], [0, 1, 2, 7]])),
        ((4, 4), [((0, 0), (2, 4)), ((2, 0), (4, 1)), ((2, 1), (4, 4))]),
        # Cut along the second dim first; the longer box before the shorter ones.
        ((4, 4), [((0, 0), (4, 2)), ((0, 2), (2, 4)), ((2, 2), (4, 4))]),
        ((6, 4), [((0, 0), (1, 1)), ((1, 0), (6, 1)), ((0, 1), (6, 3)), ((0, 3), (5, 4)), ((5, 3), (6, 4))]),
        (
            (2, 3, 4),
            [((0, 0, 0), (2, 3, 1)), ((0, 0, 1), (2, 1, 4)), ((0, 1, 1), (1, 3, 4)), ((1, 1, 1), (2, 3, 4))],
        ),
    ],
)
def test_boxes_that_make_up_the_whole(shape, boxes):
    for seed in range(3):
        random.Random(seed).shuffle(boxes)
        assert is_tiled(shape, boxes)
    for one in boxes:
        assert not is_tiled(shape, [box for box in boxes if box != one])
        assert not is_tiled(shape, [*boxes, one])


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4,), []),
        ((4,), [((0,), (2,)), ((0,), (2,))]),
        ((4,), [((0,), (3,)), ((2,), (4,))]),
        ((4,), [((0,), (1,)), ((2,), (4,))]),
        ((4,), [((0,), (2,)), ((2,), (5,))]),
        ((4, 4), [((0, 0), (4, 2)), ((0, 1), (4, 4))]),
        ((4, 4), [((0, 0), (2, 4)), ((2, 0), (4, 3)), ((1, 3), (4, 4))]),
        ((2, 2), [((0, 0), (1, 1)), ((1, 1), (2, 2)), ((0, 0), (2, 1))]),
    ],
)
def test_gaps_and_overlaps(shape, boxes):
    assert not is_tiled(shape, boxes)


def test_each_box_of_a_mesh_of_many_ranks_is_looked_at_a_few_times(monkeypatch):
    looked_at = 0
    cut = tiling._cut

    def counted(parts, dims):
        nonlocal looked_at
        looked_at += len(parts)
        return cut(parts, dims)

    monkeypatch.setattr(tiling, "_cut", counted)
    boxes = boxes_of([range(101), range(101)])
    assert is_tiled((100, 100), boxes)
    assert looked_at <= 3 * len(boxes)
