import io
import json

import pytest
import safetensors.torch
import torch
from stratagem_checkpoint import safetensors_file
from stratagem_checkpoint.checksums import CheckedFile
from stratagem_checkpoint.safetensors_file import TensorFile, encode_file

from stratagem.errors import CheckpointError


def opened(content):
    stream = content if isinstance(content, io.BytesIO) else io.BytesIO(content)
    return TensorFile(CheckedFile(stream, "x"))


def file_of(**tensors):
    chunks = {
        name: (tensor.dtype, tensor.shape, lambda tensor=tensor: tensor) for name, tensor in tensors.items()
    }
    return b"".join(encode_file(chunks))


@pytest.mark.parametrize("block_bytes", [1, 40, 2**20], ids=lambda size: f"{size} B")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_any_box_is_read_in_blocks_of_any_size(monkeypatch, block_bytes, dtype):
    monkeypatch.setattr(safetensors_file, "BLOCK_BYTES", block_bytes)
    whole = torch.randn(7, 5, 3).to(dtype) if dtype != torch.bool else torch.randn(7, 5, 3) > 0
    file = opened(file_of(other=torch.ones(9), whole=whole))
    for offsets, lengths in [
        ((0, 0, 0), (7, 5, 3)),
        ((2, 1, 1), (4, 3, 2)),
        ((6, 4, 2), (1, 1, 1)),
        ((0, 2, 0), (7, 0, 3)),
    ]:
        out = torch.zeros(lengths, dtype=dtype)
        file.read_into(out, "whole", dtype, whole.shape, offsets)
        box = tuple(slice(start, start + length) for start, length in zip(offsets, lengths, strict=True))
        assert torch.equal(out, whole[box])


class Counting(io.BytesIO):
    bytes_read = 0
    largest = 0

    def readinto(self, buffer):
        count = super().readinto(buffer)
        self.bytes_read += count
        self.largest = max(self.largest, count)
        return count


def test_rows_outside_the_box_are_not_read(monkeypatch):
    monkeypatch.setattr(safetensors_file, "BLOCK_BYTES", 4000)
    stream = Counting(file_of(w=torch.arange(100_000.0).reshape(1000, 100)))
    out = torch.zeros(50, 100)
    opened(stream).read_into(out, "w", torch.float32, (1000, 100), (500, 0))
    assert torch.equal(out, torch.arange(50_000.0, 55_000.0).reshape(50, 100))
    assert stream.bytes_read < 50 * 400 + 500
    assert stream.largest <= 4000


def test_chunks_are_aligned_and_the_library_agrees():
    tensors = {
        "a": torch.ones(3, dtype=torch.uint8),
        "b": torch.randn(2).double(),
        "c": torch.tensor(1.5).half(),
    }
    content = file_of(**tensors)
    loaded = safetensors.torch.load(content)
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 8 == 0
    assert content[start : start + 16] == bytes(tensors["b"].view(torch.uint8).tolist())


def test_only_one_tensor_at_a_time_is_made():
    alive = []

    def make():
        alive.append("made")
        return torch.ones(2)

    parts = encode_file(dict.fromkeys("abc", (torch.float32, (2,), make)))
    next(parts)
    assert alive == []
    next(parts)
    assert alive == ["made"]


def test_a_file_from_the_library_is_read():
    content = safetensors.torch.save({"w": torch.arange(6).reshape(2, 3)})
    assert torch.equal(opened(content).read("w", torch.int64, (2, 3)), torch.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    "content", [b"", b"123", bytes(8) + b"{}", b"\x02" + bytes(7) + b"[]", b"\xff" * 30], ids=repr
)
def test_other_files_are_damage(content):
    with pytest.raises(CheckpointError, match="x is damaged"):
        opened(content)


def test_a_missing_chunk_or_another_shape_is_damage():
    file = opened(file_of(w=torch.ones(2)))
    for name, shape in (("v", (2,)), ("w", (3,)), ("w", ())):
        with pytest.raises(CheckpointError, match=f"no chunk '{name}'"):
            file.read(name, torch.float32, shape)
    with pytest.raises(CheckpointError, match=r"no chunk 'w' of torch.int32"):
        file.read("w", torch.int32, (2,))


def header_of(content, change):
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["a"].update(data_offsets=[0, 4]),
        lambda h: h["a"].update(data_offsets=[4, 12]),
        lambda h: h["a"].update(data_offsets=[-8, 0]),
        lambda h: h["a"].update(data_offsets=[0]),
        lambda h: h["a"].update(data_offsets=[False, 8]),
        lambda h: h["a"].update(shape=[1]),
        lambda h: h["a"].update(shape=[2**70]),
        lambda h: h["a"].update(dtype="F64"),
        lambda h: h["a"].update(dtype="F31"),
        lambda h: h["a"].update(dtype=None),
        lambda h: h.update(a=h["b"], b=h["a"]),
        lambda h: h.pop("b"),
    ],
)
def test_a_header_says_of_each_byte_what_it_is(change):
    content = file_of(a=torch.ones(2), b=torch.arange(2.0))
    chunks = dict.fromkeys("ab", (torch.float32, (2,)))
    TensorFile(CheckedFile(io.BytesIO(header_of(content, lambda header: None)), "x"), chunks)
    with pytest.raises(CheckpointError, match="x is damaged: its header"):
        TensorFile(CheckedFile(io.BytesIO(header_of(content, change)), "x"), chunks)


def test_a_header_of_other_chunks_is_refused():
    file = CheckedFile(io.BytesIO(file_of(a=torch.ones(2))), "x")
    for chunks in (
        {},
        {"a": (torch.int32, (2,))},
        {"a": (torch.float32, (2, 1))},
        {"b": (torch.float32, (2,))},
    ):
        with pytest.raises(CheckpointError, match="isn't that of the chunks which the manifest names"):
            TensorFile(file, chunks)


@pytest.mark.parametrize(
    "text",
    [b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": null}', b"[" * 10**5, b"\xff\xfe{\x00}\x00"],
    ids=repr,
)
def test_a_header_that_is_no_strict_json_is_damage(text):
    with pytest.raises(CheckpointError, match="x is damaged: its header"):
        opened(len(text).to_bytes(8, "little") + text)
