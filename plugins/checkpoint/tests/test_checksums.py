import io
import random

import pytest
import torch
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_checkpoint.checked_files import verify_share, write_checked
from stratagem_checkpoint.checksums import CHECKED_BYTES, DIGITS, BlockChecksums, CheckedFile
from stratagem_checkpoint.local_filesystem import LocalFilesystem

from stratagem import Checkpoint
from stratagem.errors import CheckpointError

SIZES = [0, 1, CHECKED_BYTES - 1, CHECKED_BYTES, CHECKED_BYTES + 1, 3 * CHECKED_BYTES + 12345]


def checksums_of(*parts):
    checksums = BlockChecksums()
    assert b"".join(map(bytes, checksums.passing(parts))) == b"".join(map(bytes, parts))
    return checksums.hexdigest()


@pytest.mark.parametrize("size", SIZES)
def test_checksums_are_those_of_the_content_however_it_came(size):
    content = random.Random(size).randbytes(size)
    whole = checksums_of(content)
    assert len(whole) == -(-size // CHECKED_BYTES) * DIGITS
    cuts = sorted(random.Random(1).randrange(size + 1) for _ in range(5))
    parts = [memoryview(content)[begin:end] for begin, end in zip([0, *cuts], [*cuts, size], strict=True)]
    assert checksums_of(*parts) == whole
    CheckedFile(io.BytesIO(content), "x", size, whole).verify()


class Counting(io.BytesIO):
    bytes_read = 0

    def readinto(self, buffer):
        count = super().readinto(buffer)
        self.bytes_read += count
        return count


def test_a_part_is_verified_by_reading_little_more_than_it():
    content = random.Random(0).randbytes(10 * CHECKED_BYTES + 7)
    stream = Counting(content)
    file = CheckedFile(stream, "x", len(content), checksums_of(content))
    start, size = 4 * CHECKED_BYTES + 5, 2 * CHECKED_BYTES
    assert file.read(start, size) == content[start : start + size]
    assert stream.bytes_read == 3 * CHECKED_BYTES
    # What lies after each other shares blocks: all of it is read once.
    for begin in range(6 * CHECKED_BYTES + 9, len(content) - 50_000, 50_000):
        assert file.read(begin, 50_000) == content[begin : begin + 50_000]
    assert file.read(len(content) - 9, 9) == content[-9:]
    assert stream.bytes_read == 6 * CHECKED_BYTES + 7


def test_damage_is_found_in_each_block_that_is_read_and_in_no_other():
    content = bytearray(random.Random(0).randbytes(3 * CHECKED_BYTES + 7))
    checksums = checksums_of(bytes(content))
    content[CHECKED_BYTES + 3] ^= 16
    file = CheckedFile(io.BytesIO(content), "x", len(content), checksums)
    for start, size in ((0, CHECKED_BYTES), (2 * CHECKED_BYTES, CHECKED_BYTES + 7)):
        assert file.read(start, size) == content[start : start + size]
    for start, size in (
        (CHECKED_BYTES - 1, 2),
        (CHECKED_BYTES, 1),
        (0, len(content)),
        (2 * CHECKED_BYTES - 1, 9),
    ):
        with pytest.raises(CheckpointError, match="x is damaged: bytes 1048576 to 2097152 aren't what was"):
            file.read(start, size)
    assert (
        CheckedFile(io.BytesIO(content), "x").read(CHECKED_BYTES - 1, 2) == content[CHECKED_BYTES - 1 :][:2]
    )


def test_another_length_and_bytes_behind_the_end_are_damage():
    with pytest.raises(CheckpointError, match="x is damaged: it has 3 bytes instead of 4"):
        CheckedFile(io.BytesIO(b"abc"), "x", 4, checksums_of(b"abcd"))
    file = CheckedFile(io.BytesIO(b"abc"), "x")
    for start, size in ((0, 4), (4, 0), (-1, 2)):
        with pytest.raises(CheckpointError, match="x is damaged: it ends before byte"):
            file.read(start, size)


def save_of_kind(collectives, path, kind):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    generator = torch.Generator().manual_seed(0)
    tensors = {f"model/{n}": torch.randn(64, n, generator=generator) for n in (1, 40, 500)}
    if kind == "sharded":
        mesh = init_device_mesh("cpu", (collectives.world_size,))
        tensors = {key: distribute_tensor(value, mesh, [Shard(0)]) for key, value in tensors.items()}
    state = {"epoch": 3, "scale": torch.ones(3), "lists": [[1, 2.5], {"a": None}]}
    rank_state = {"rng": torch.arange(50), "rank": collectives.rank}
    DirectoryCheckpointer(collectives).save(path, Checkpoint(tensors, state, rank_state))


@pytest.mark.parametrize(("kind", "world_size"), [("single", 1), ("replicated", 2), ("sharded", 2)])
def test_no_flipped_bit_is_accepted(ranks, tmp_path, kind, world_size):
    from flips import accepted_flips, read_all  # ranks import this file, and don't find that one

    ranks(save_of_kind, world_size, path=str(tmp_path / "c"), kind=kind)
    assert read_all(tmp_path / "c").state["epoch"] == 3
    assert accepted_flips(tmp_path / "c", 40, seed=world_size) == []
    read_all(tmp_path / "c")


def read_rows(collectives, path, verify):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (collectives.world_size,))
    target = distribute_tensor(torch.zeros(1024, 1024), mesh, [Shard(0)])
    try:
        DirectoryCheckpointer(collectives).open(path, verify=verify).read({"w": target})
    except CheckpointError as error:
        return str(error)
    return target.to_local().sum().item()


def test_a_sharded_load_verifies_what_it_reads(ranks, checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(1024, 1024)}))
    file = tmp_path / "c" / "tensors-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1  # read by the last rank alone, and refused on every one
    file.write_bytes(content)
    reported = ranks(read_rows, 3, path=str(tmp_path / "c"), verify=True)
    assert all("tensors-00000.safetensors is damaged: bytes 4194304 to" in each for each in reported)
    assert len(set(reported)) == 1
    assert len(ranks(read_rows, 3, path=str(tmp_path / "c"), verify=False)) == 3


@pytest.mark.parametrize("damaged", range(5))
def test_each_block_is_verified_in_one_share(tmp_path, damaged):
    folder, filesystem = str(tmp_path), LocalFilesystem(1)
    contents = {"tensors-0": 3 * CHECKED_BYTES + 7, "tensors-1": CHECKED_BYTES}
    records = [
        write_checked(filesystem, folder, name, [random.Random(size).randbytes(size)])
        for name, size in contents.items()
    ]
    name, start = ("tensors-0", damaged * CHECKED_BYTES) if damaged < 4 else ("tensors-1", 0)
    with open(tmp_path / name, "r+b") as file:
        file.seek(start + 3)
        byte = file.read(1)
        file.seek(start + 3)
        file.write(bytes([byte[0] ^ 1]))
    for index in range(3):
        if index == damaged % 3:
            with pytest.raises(CheckpointError, match=f"{name} is damaged: bytes {start} to"):
                verify_share(filesystem, folder, records, index, 3)
        else:
            verify_share(filesystem, folder, records, index, 3)
