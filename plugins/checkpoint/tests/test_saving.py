"""What all ranks agree on before they write: ranks are threads."""

from __future__ import annotations

import pytest
import torch
from stratagem_checkpoint.saving import agree_on_plan
from threads import on_threads

from stratagem.errors import CheckpointError


def plans_of(tensors):
    """Return what each rank writes of its dict of tensors: the names, sorted."""
    plans = on_threads(
        len(tensors), lambda collectives: agree_on_plan(collectives, tensors[collectives.rank])
    )
    return [sorted(item.index.fqn for item in plans[0].plans[rank].items) for rank in range(len(tensors))]


def test_a_copy_is_written_by_the_rank_with_the_least_to_write():
    large, small = torch.ones(1000), torch.ones(10)
    assert plans_of([{"own": large, "copy": small}, {"copy": small}]) == [["own"], ["copy"]]
    assert plans_of([{"copy": small}, {"own": large, "copy": small}]) == [["copy"], ["own"]]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            torch.ones(2),
            torch.ones(3),
            r"is torch.float32 \(2,\) on rank 0 but torch.float32 \(3,\) on rank 1",
        ),
        (
            torch.ones(3),
            torch.ones(2),
            r"is torch.float32 \(3,\) on rank 0 but torch.float32 \(2,\) on rank 1",
        ),
        (
            torch.ones(3),
            torch.ones(3).double(),
            r"is torch.float32 \(3,\) on rank 0 but torch.float64 \(3,\)",
        ),
    ],
)
def test_tensors_that_differ_between_ranks_are_refused(first, second, said):
    with pytest.raises(CheckpointError, match=f"tensor 'w' {said}"):
        plans_of([{"w": first}, {"w": second}])
