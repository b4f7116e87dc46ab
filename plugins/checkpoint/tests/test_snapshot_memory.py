"""Memory that is read by another process."""

import os
import subprocess
import sys

import pytest
import torch
from stratagem_checkpoint import DirectoryCheckpointer, memory_reader, snapshot_memory
from stratagem_checkpoint.memory_reader import MemoryReader
from stratagem_checkpoint.snapshot import SnapshotBuffer
from stratagem_checkpoint.snapshot_memory import allocate

from stratagem import Checkpoint, LocalCollectives

SIZE_BYTES = 3 * 2**20 + 5


def refuse_own_memory(monkeypatch):
    really = os.open

    def refuse(path, *arguments, **options):
        if path == "/proc/self/mem":
            raise PermissionError(13, "Permission denied")
        return really(path, *arguments, **options)

    monkeypatch.setattr(snapshot_memory.os, "open", refuse)


@pytest.mark.parametrize("is_of_process", [True, False])
def test_it_is_read_through_its_descriptor(monkeypatch, is_of_process):
    if not is_of_process:
        refuse_own_memory(monkeypatch)
    memory = allocate(SIZE_BYTES)
    assert memory.is_of_process == is_of_process
    assert memory.offset % 2**21 == 0  # where a huge page begins
    assert len(memory.view) == SIZE_BYTES
    content = os.urandom(SIZE_BYTES)
    memory.view[:] = content
    reader = MemoryReader(memory.descriptor, memory.offset, None)
    assert b"".join(bytes(part) for part in reader.parts(0, SIZE_BYTES)) == content
    assert b"".join(bytes(part) for part in reader.parts(7, 2**20 + 1)) == content[7 : 2**20 + 8]
    assert list(reader.parts(5, 0)) == []
    reader.close()


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_it_is_read_where_the_system_has_no_call_for_memory_of_other_processes(monkeypatch, error):
    class Without:
        def __init__(self, name):
            if error is not AttributeError:
                raise error("no C library to be found")

    monkeypatch.setattr(memory_reader.ctypes, "CDLL", Without)
    memory = allocate(10)
    memory.view[:] = b"0123456789"
    reader = MemoryReader(memory.descriptor, memory.offset, os.getppid())
    assert b"".join(map(bytes, reader.parts(2, 5))) == b"23456"
    reader.close()


READS = """
import os, sys
from stratagem_checkpoint.memory_reader import MemoryReader
descriptor, offset, parent, may = map(int, sys.argv[1:])
reader = MemoryReader(descriptor, offset, parent)
if not may:
    reader._readv = lambda *arguments: -1
try:
    print(sum(sum(part) for part in reader.parts(1, 2**21)))
except EOFError as error:
    print(error)
"""


def read_in_a_child(memory, parent, may=True):
    arguments = [str(each) for each in (memory.descriptor, memory.offset, parent, int(may))]
    command = [sys.executable, "-c", READS, *arguments]
    return subprocess.run(
        command, pass_fds=[memory.descriptor], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("may", [True, False])
def test_a_child_reads_it_also_where_it_may_not_trace(may):
    memory = allocate(SIZE_BYTES)
    memory.view[:] = b"\2" * SIZE_BYTES
    assert read_in_a_child(memory, os.getpid(), may) == str(2 * 2**21)
    os.close(memory.descriptor)


def test_what_another_process_has_under_its_number_is_not_read():
    memory = allocate(SIZE_BYTES)
    assert "is gone" in read_in_a_child(memory, os.getppid())
    os.close(memory.descriptor)


TAKES = """
import sys
from stratagem_checkpoint import writer_process
descriptor, offset, process = map(int, sys.argv[1:])
writer_process.recv_handle = lambda connection: descriptor
writer = writer_process._Writer(None)
writer.do(writer_process.Buffer(offset, process))
sys.exit(any(part.tobytes().strip(b"\\2") for part in writer._memory.parts(0, 2**21)))
"""


def test_it_is_read_of_the_process_that_has_it_also_where_another_started_the_writer():
    memory = allocate(SIZE_BYTES)
    memory.view[:] = b"\2" * SIZE_BYTES
    arguments = [str(each) for each in (memory.descriptor, memory.offset, os.getpid())]
    pid = os.fork()
    if not pid:  # It has zeros at that address.
        command = [sys.executable, "-c", TAKES, *arguments]
        os._exit(subprocess.run(command, pass_fds=[memory.descriptor]).returncode)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(memory.descriptor)


def test_forked_processes_have_none_of_it():
    """With a copy of it, each of a loader's workers would make the next snapshot slow, and take as much memory."""
    memory = allocate(SIZE_BYTES)
    memory.view[:] = b"\3" * SIZE_BYTES
    pid = os.fork()
    if not pid:
        os._exit(any(memory.view))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bytes(memory.view) == b"\3" * SIZE_BYTES
    os.close(memory.descriptor)


def test_saves_where_a_process_may_not_read_itself(monkeypatch, tmp_path):
    refuse_own_memory(monkeypatch)
    background = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")), async_=True)
    try:
        for size in (100, 1_000_000):
            background.save(str(tmp_path / "c"), Checkpoint({"w": torch.full((size,), float(size))}))
            background.open(str(tmp_path / "c")).read({"w": (read := torch.zeros(size))})
            assert bool((read == size).all())
    finally:
        background.close()


def test_memory_is_kept_until_a_save_needs_more():
    buffer = SnapshotBuffer()
    assert buffer.reserve({"a": bytes(100_000)})
    memory = buffer.memory
    assert not buffer.reserve({"a": bytes(100_000)})
    assert not buffer.reserve({"a": bytes(10)})
    assert buffer.memory is memory
    larger = {"a": b"z" * 200_000}
    assert buffer.reserve(larger)
    assert buffer.memory is not memory
    (span,) = buffer.take(larger)
    assert bytes(buffer.memory.view[span.start : span.start + span.size_bytes]) == larger["a"]
    buffer.close()
