"""Copies of tensors by threads of our own."""

import pytest
import torch
from stratagem_checkpoint import memory_copies
from stratagem_checkpoint.memory_copies import MemoryCopies


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sizes", [None, (1000, 1), (1000, 10_000), (1000, 2**30)])
def test_each_tensor_is_copied_whole(monkeypatch, threads, sizes):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    if sizes is not None:
        monkeypatch.setattr(memory_copies, "_CHUNK_BYTES", sizes[0])
        monkeypatch.setattr(memory_copies, "_WAITING_BYTES", sizes[1])
    tensors = [torch.randint(256, (size,), dtype=torch.uint8) for size in (1, 999, 1000, 1001, 12_345)]
    room = torch.zeros(sum(map(len, tensors)) + 1, dtype=torch.uint8)
    copies, start = MemoryCopies(), 0
    for tensor in tensors:
        copies.add(room.data_ptr() + start, tensor)
        start += len(tensor)
    del tensor
    copies.finish()
    copies.finish()
    assert torch.equal(room, torch.cat([*tensors, torch.zeros(1, dtype=torch.uint8)]))
