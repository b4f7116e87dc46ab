"""Shards and rows of a tensor that a rank has whole."""

import pytest
import torch
from stratagem_sharding.shards import padded_flat_shard, row_shard


@pytest.mark.parametrize(
    ("rank", "expected"), [(0, [0, 1, 2]), (1, [3, 4, 5]), (2, [6, 0, 0]), (3, [0, 0, 0])]
)
def test_shards_are_flat_and_padded_with_zeros(rank, expected):
    assert padded_flat_shard(torch.arange(7.0), 3, rank).tolist() == expected


def test_a_piece_of_a_matrix_goes_over_its_rows():
    assert padded_flat_shard(torch.arange(6.0).reshape(2, 3), 2, 1).tolist() == [2, 3]


def test_one_process_has_a_copy_of_all():
    whole = torch.ones(2, 2, requires_grad=True)
    rows = row_shard(whole, None)
    assert torch.equal(rows, whole)
    assert not rows.requires_grad
    assert rows.data_ptr() != whole.data_ptr()


def cut(collectives, count):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (collectives.world_size,))
    rows = row_shard(torch.arange(float(count * 2)).reshape(count, 2), mesh)
    scalar = row_shard(torch.tensor(3.0), mesh)
    return rows.to_local().tolist(), tuple(rows.shape), scalar.item()


@pytest.mark.parametrize("count", [1, 3])
def test_ranks_have_rows_as_torch_chunks_them(ranks, count):
    everyone = ranks(cut, 2, count=count)
    whole = torch.arange(float(count * 2)).reshape(count, 2)
    given = [rows for rows, _, _ in everyone]
    assert given == [[row.tolist() for row in part] for part in (*whole.chunk(2), whole[:0])][:2]
    assert [(shape, scalar) for _, shape, scalar in everyone] == [((count, 2), 3.0)] * 2
