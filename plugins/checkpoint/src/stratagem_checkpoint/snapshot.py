"""Snapshots of a checkpoint's files, in memory that another process can read."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from stratagem_checkpoint.host_pinning import HostPinning, host_pinning
from stratagem_checkpoint.memory_copies import MemoryCopies
from stratagem_checkpoint.safetensors_file import encode_header, made
from stratagem_checkpoint.snapshot_memory import SnapshotMemory, allocate
from stratagem_checkpoint.state_files import Content
from stratagem_checkpoint.writer_process import Span

_ALIGNED_BYTES = 64
"""Alignment of a file's data; no element is wider."""


class SnapshotBuffer:
    """Memory that is kept from one save to the next.

    If tensors are on a device whose library can pin existing memory, the memory is pinned, so that copies run
    asynchronously at the speed of the bus.
    """

    def __init__(self) -> None:
        self._memory: SnapshotMemory | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._pinning: HostPinning | None = None
        """The functions that pinned the memory; None while it isn't pinned."""

    @property
    def memory(self) -> SnapshotMemory:
        """To be read by another process; after the first `reserve`."""
        assert self._memory is not None
        return self._memory

    def reserve(self, contents: Mapping[str, Content]) -> bool:
        """Reserve memory for these files; return whether that took a new buffer, with its own descriptor."""
        _, size_bytes = _layout(contents)
        if self._memory is not None and size_bytes <= len(self._bytes):
            return False
        self.close()
        self._memory = allocate(max(size_bytes, 1))
        self._bytes = torch.frombuffer(self._memory.view, dtype=torch.uint8)
        return True

    def take(self, contents: Mapping[str, Content]) -> list[Span]:
        """Copy the files' bytes, for which there is room; return where each is.

        When this returns, tensors may change.

        Raises:
            CheckpointError: a tensor isn't what it was said to be.
        """
        spans, _ = _layout(contents)
        devices: set[torch.device] = set()
        copies = MemoryCopies()
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
                if tensor.device.type == "cpu" and tensor.is_contiguous() and not _has_bits(tensor):
                    copies.add(room.data_ptr(), tensor)
                    continue
                is_pinned = self._pin(tensor.device)
                if is_pinned:
                    devices.add(tensor.device)
                room.copy_(tensor, non_blocking=is_pinned)
        copies.finish()
        for device in devices:
            torch.accelerator.synchronize(device)
        return spans

    def close(self) -> None:
        """Give the memory back."""
        if self._pinning is not None:
            self._pinning.unregister(self._bytes.data_ptr())
            self._pinning = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self._memory is not None:
            os.close(self._memory.descriptor)
        self._memory = None

    def _at(self, start: int, size_bytes: int) -> torch.Tensor:
        return self._bytes[start : start + size_bytes]

    def _pin(self, device: torch.device) -> bool:
        """Pin the memory for copies from a device, unless it is pinned; return whether it is."""
        if self._pinning is None and device.type != "cpu":
            pinning = host_pinning(device)
            # If pinning fails, copies use unpinned memory.
            if pinning is not None and pinning.register(self._bytes.data_ptr(), len(self._bytes)):
                self._pinning = pinning
        return self._pinning is not None and device.type != "cpu"


def _has_bits(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values differ from its memory: its conjugate or negative bit is set."""
    return tensor.is_conj() or tensor.is_neg()


def _layout(contents: Mapping[str, Content]) -> tuple[list[Span], int]:
    """Where each file is, and where the last one ends."""
    spans, end = [], 0
    for name, content in contents.items():
        if isinstance(content, bytes):
            header_bytes, data_bytes = len(content), 0
        else:
            header, placed = encode_header(content)
            header_bytes, data_bytes = len(header), max(end for _, end in placed.values())
        data = -(-(end + header_bytes) // _ALIGNED_BYTES) * _ALIGNED_BYTES
        spans.append(Span(name, data - header_bytes, header_bytes + data_bytes))
        end = data + data_bytes
    return spans, end
