"""Files that are brought to the disk while they are written."""

import errno

import pytest
import torch
from stratagem_checkpoint import writeback
from stratagem_checkpoint.formats.converting import Writing, read_weights, write_weights
from stratagem_checkpoint.writeback import WRITEBACK_BYTES, Writeback

from stratagem import Checkpoint


@pytest.fixture
def begun(monkeypatch):
    """Which ranges of files the kernel was told to begin with."""
    ranges = []
    monkeypatch.setattr(
        writeback, "_sync_file_range", lambda: lambda _, start, size, flags: ranges.append((start, size)) or 0
    )
    return ranges


def test_whole_ranges_are_begun_as_soon_as_they_are_written(begun, tmp_path):
    with open(tmp_path / "file", "wb") as stream:
        back = Writeback(stream.fileno(), 100)
        for size_bytes in (WRITEBACK_BYTES - 1, 2, 3, 2 * WRITEBACK_BYTES, 5):
            back.wrote(size_bytes)
    assert begun == [(100, WRITEBACK_BYTES + 1), (101 + WRITEBACK_BYTES, 3 + 2 * WRITEBACK_BYTES)]


def test_saving_and_converting_begin_before_they_end(begun, checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"model/w": torch.ones(5 * 2**20)}))
    assert [start for start, _ in begun] == [0, WRITEBACK_BYTES]
    begun.clear()
    write_weights(read_weights(str(tmp_path / "c")), str(tmp_path / "hf"), "huggingface", Writing())
    assert len(begun) == 2


def test_a_system_that_has_no_such_call_saves_as_well(monkeypatch, checkpointer, tmp_path):
    class Without:
        def __init__(self, *arguments, **options):
            raise OSError(errno.ENOENT, "no C library to be found")

    monkeypatch.setattr(writeback.ctypes, "CDLL", Without)
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(3 * 2**20)}))
    checkpointer.open(str(tmp_path / "c")).read({"w": (read := torch.zeros(3 * 2**20))})
    assert bool((read == 1).all())
