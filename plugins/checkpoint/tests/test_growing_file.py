"""Large files that are brought to the disk while they are written."""

import errno
import os
import tempfile

import pytest
import torch
from stratagem_checkpoint import growing_file
from stratagem_checkpoint.growing_file import ROOM_BYTES, STEP_BYTES, GrowingFile, make_room
from stratagem_convert.formats.converting import Writing, read_weights, write_weights

from stratagem import Checkpoint

LENGTH = STEP_BYTES + 5 * 2**20 + 3


on_a_device = pytest.mark.skipif(
    not hasattr(os, "posix_fallocate") or os.major(os.stat(tempfile.gettempdir()).st_dev) == 0,
    reason="the folder for temporary files is on no device",
)


@pytest.fixture
def called(monkeypatch):
    """Calls of the kernel: (name, first byte, number of bytes)."""
    calls = []
    really = growing_file._libc()

    class Recording:
        def sync_file_range(self, descriptor, start, size_bytes, flags):
            calls.append(("begin", start, size_bytes))
            return really.sync_file_range(descriptor, start, size_bytes, flags)

        def fallocate(self, descriptor, mode, start, size_bytes):
            calls.append(("room", start, size_bytes))
            return really.fallocate(descriptor, mode, start, size_bytes)

    monkeypatch.setattr(growing_file, "_libc", Recording)
    return calls


@on_a_device
def test_what_is_written_is_begun_and_what_follows_has_room(called, tmp_path):
    with open(tmp_path / "file", "wb", buffering=0) as stream:
        file = GrowingFile(stream.fileno())
        for size_bytes in (STEP_BYTES - 1, 2, 3, 2 * STEP_BYTES, 5):
            stream.write(bytes(size_bytes))
            file.wrote(size_bytes)
        file.finish()
    assert called == [
        ("begin", 0, STEP_BYTES + 1),
        ("room", STEP_BYTES + 1, ROOM_BYTES),
        ("begin", STEP_BYTES + 1, 3 + 2 * STEP_BYTES),
    ]
    stat = os.stat(tmp_path / "file")
    assert stat.st_size == 3 * STEP_BYTES + 9
    assert stat.st_blocks * 512 < stat.st_size + 2**20  # the room was given back


@on_a_device
def test_room_is_asked_for_again_where_it_was(called, monkeypatch, tmp_path):
    step, room = 4096, 3 * 4096
    monkeypatch.setattr(growing_file, "STEP_BYTES", step)
    monkeypatch.setattr(growing_file, "ROOM_BYTES", room)
    with open(tmp_path / "file", "wb", buffering=0) as stream:
        file = GrowingFile(stream.fileno())
        for _ in range(8):
            stream.write(bytes(step))
            file.wrote(step)
        file.finish()
    # Less than a step of room is left after three steps, and after six.
    assert [start for name, start, _ in called if name == "room"] == [step, step + room, step + 2 * room]
    assert os.stat(tmp_path / "file").st_size == 8 * step


@on_a_device
def test_the_middle_of_a_file_cuts_nothing_off(called, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\1" * (3 * STEP_BYTES))
    with open(path, "r+b", buffering=0) as stream:
        file = GrowingFile(stream.fileno(), stream.seek(2**20))
        stream.write(bytes(STEP_BYTES))
        file.wrote(STEP_BYTES)
        file.finish()
    assert [name for name, *_ in called] == ["begin", "room"]
    assert path.read_bytes() == b"\1" * 2**20 + bytes(STEP_BYTES) + b"\1" * (2 * STEP_BYTES - 2**20)


@on_a_device
def test_a_new_file_has_its_length_and_room_for_all_of_it(called, tmp_path):
    with open(tmp_path / "file", "wb", buffering=0) as stream:
        make_room(stream.fileno(), LENGTH)
    assert called == [("room", 0, LENGTH)]
    stat = os.stat(tmp_path / "file")
    assert stat.st_size == LENGTH <= stat.st_blocks * 512


def test_a_new_file_has_its_length_where_there_is_no_such_call(monkeypatch, tmp_path):
    monkeypatch.setattr(growing_file, "_libc", lambda: None)
    with open(tmp_path / "file", "wb", buffering=0) as stream:
        make_room(stream.fileno(), LENGTH)
        file = GrowingFile(stream.fileno())
        file.wrote(LENGTH)
        file.finish()
    assert os.stat(tmp_path / "file").st_size == LENGTH


@on_a_device
def test_saving_and_converting_do_so(called, checkpointer, tmp_path):
    weight = torch.randn(LENGTH // 4)
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"model/w": weight}))
    assert [(name, start) for name, start, _ in called] == [("begin", 0), ("room", called[0][2])]
    called.clear()
    for name in ("huggingface", "torch"):
        write_weights(read_weights(str(tmp_path / "c")), str(tmp_path / name), name, Writing())
        assert [name for name, *_ in called] == ["begin", "room"]
        read = torch.load(tmp_path / name) if name == "torch" else None
        assert read is None or torch.equal(read["w"], weight)
        called.clear()
    checkpointer.open(str(tmp_path / "c")).read({"model/w": (read := torch.zeros(LENGTH // 4))})
    assert torch.equal(read, weight)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no file system in memory")
def test_a_file_system_in_memory_is_asked_for_no_room(called, checkpointer):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        checkpointer.save(f"{folder}/c", Checkpoint({"w": torch.ones(LENGTH // 4)}))
    assert [name for name, *_ in called] == ["begin"]


def test_small_files_are_left_alone(called, checkpointer, tmp_path):
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(3)}, {"step": 3}))
    assert called == []


@pytest.mark.parametrize("kind", ["no C library", "a file system without them"])
def test_where_there_are_no_such_calls_files_are_written_as_well(monkeypatch, checkpointer, tmp_path, kind):
    class Without:
        def __init__(self, *arguments, **options):
            raise OSError(errno.ENOENT, "no C library to be found")

    class Refusing:
        def sync_file_range(self, *arguments):
            return -1

        fallocate = sync_file_range

    if kind == "no C library":
        monkeypatch.setattr(growing_file.ctypes, "CDLL", Without)
    else:
        monkeypatch.setattr(growing_file, "_libc", Refusing)
    checkpointer.save(str(tmp_path / "c"), Checkpoint({"w": torch.ones(LENGTH // 4)}))
    checkpointer.open(str(tmp_path / "c")).read({"w": (read := torch.zeros(LENGTH // 4))})
    assert bool((read == 1).all())
