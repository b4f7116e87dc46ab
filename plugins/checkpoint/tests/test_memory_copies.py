"""Copies of tensors by threads of our own."""

import pytest
import torch
from stratagem_checkpoint import memory_copies
from stratagem_checkpoint.memory_copies import MemoryCopies


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("waiting_bytes", [1, 10_000, 2**30])
def test_each_tensor_is_copied_whole(monkeypatch, threads, waiting_bytes):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(memory_copies, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(memory_copies, "_WAITING_BYTES", waiting_bytes)
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
