"""The bytes of a checkpoint's files as they were in one instant, in memory that another process can read."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping

import torch

from stratagem_checkpoint.safetensors_file import encode_header, made
from stratagem_checkpoint.state_files import Content
from stratagem_checkpoint.writer_process import Span

_ALIGNED_BYTES = 64
"""Where the data of a file may begin: no element is wider."""


class SnapshotBuffer:
    """Memory that is kept from one save to the next, and that no file system has: it is gone with its processes.

    Where tensors are on CUDA devices it is pinned, so that they are copied at the speed of the bus.

    Attributes:
        descriptor: of the memory, to be given to who reads it; -1 before the first `reserve`.
        size_bytes: how much there is.
    """

    def __init__(self) -> None:
        self.descriptor, self.size_bytes = -1, 0
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._is_pinned = False

    def reserve(self, contents: Mapping[str, Content]) -> bool:
        """Have room for these files; whether that took another buffer, with a descriptor of its own."""
        _, size_bytes = _layout(contents)
        if size_bytes <= self.size_bytes and self.descriptor >= 0:
            return False
        self.close()
        size_bytes = -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor = _anonymous_file()
        os.ftruncate(self.descriptor, size_bytes)
        self._bytes = torch.frombuffer(mmap.mmap(self.descriptor, size_bytes), dtype=torch.uint8)
        self.size_bytes = size_bytes
        return True

    def take(self, contents: Mapping[str, Content]) -> list[Span]:
        """Copy the files' bytes, for which there is room; return where each is.

        When this returns, tensors may change.

        Raises:
            CheckpointError: a tensor isn't what it was said to be.
        """
        spans, _ = _layout(contents)
        devices: set[torch.device] = set()
        for span in spans:
            content = contents[span.name]
            header, placed = (content, {}) if isinstance(content, bytes) else encode_header(content)
            if header:
                self._at(span.start, len(header)).copy_(
                    torch.frombuffer(bytearray(header), dtype=torch.uint8)
                )
            data = span.start + len(header)
            for name, (start, end) in placed.items():
                if start == end or isinstance(content, bytes):
                    continue
                tensor = made(name, content[name])
                room = self._at(data + start, end - start).view(tensor.dtype).view(tensor.shape)
                if tensor.device.type == "cuda":
                    self._pin()
                    devices.add(tensor.device)
                room.copy_(tensor, non_blocking=tensor.device.type == "cuda")
        for device in devices:
            torch.cuda.synchronize(device)
        return spans

    def close(self) -> None:
        """Give the memory back."""
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())  # type: ignore[no-untyped-call]
            self._is_pinned = False
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self.size_bytes = -1, 0

    def _at(self, start: int, size_bytes: int) -> torch.Tensor:
        return self._bytes[start : start + size_bytes]

    def _pin(self) -> None:
        if not self._is_pinned:
            # Where it is refused, copies take the way of memory that isn't pinned.
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = cudart.cudaHostRegister(self._bytes.data_ptr(), self.size_bytes, 0)
            self._is_pinned = int(code) == 0


def _layout(contents: Mapping[str, Content]) -> tuple[list[Span], int]:
    """Where each file is, and where the last one ends."""
    spans, end = [], 0
    for name, content in contents.items():
        if isinstance(content, bytes):
            header_bytes, data_bytes = len(content), 0
        else:
            header, placed = encode_header(content)
            header_bytes, data_bytes = len(header), max((end for _, end in placed.values()), default=0)
        data = -(-(end + header_bytes) // _ALIGNED_BYTES) * _ALIGNED_BYTES
        spans.append(Span(name, data - header_bytes, header_bytes + data_bytes))
        end = data + data_bytes
    return spans, end


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stratagem-snapshot")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
