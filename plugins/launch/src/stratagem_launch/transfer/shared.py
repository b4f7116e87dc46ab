"""`shared`: a tensor in memory that workers map, so that a launch doesn't copy it."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import weakref
from typing import TYPE_CHECKING

from stratagem.errors import UsageError, bytes_text

if TYPE_CHECKING:
    import torch

NAME = "stratagem"
"""Name of files in memory."""
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""A flag for private maps, so that the system doesn't reserve memory for them before they are written to."""
_CHUNK_BYTES = 64 << 20
_files: dict[int, int] = {}
"""Inode → descriptor, of the files in memory that contain tensors of this process."""


class _Map(mmap.mmap):
    """A map of a whole file in memory. Unlike its base class, it supports weak references."""


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in memory that workers map, for data that the launching process holds.

    Not collective. A launch copies tensors into such memory, so that they exist twice while it runs. It doesn't copy
    tensors that this function has returned, and views of them. Use the returned tensor, and drop the original::

        data = stratagem.shared(torch.load("data.pt"))

    Other processes don't see writes to it. Memory that has been written to is copied like any other. The storage
    can't be resized. On systems without `memfd_create` (all but Linux) this returns the tensor itself.

    Args:
        tensor: of any shape and dtype, dense, on the CPU, without gradients.

    Raises:
        UsageError: another kind of tensor, or too little memory for a copy.
    """
    import torch

    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        what = (
            "a tensor that requires gradients" if type(tensor) is torch.Tensor else type(tensor).__qualname__
        )
        raise UsageError(
            f"shared got {what}: give it a torch.Tensor that holds data, as tensor.detach() does"
        )
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        raise UsageError(
            f"shared got a tensor on {tensor.device} with {tensor.layout}: give it a dense one on the CPU"
        )
    if not hasattr(os, "memfd_create") or not tensor.numel():
        return tensor
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    content = dense.reshape(-1).view(torch.uint8).numpy().data
    mapped = torch.frombuffer(_written(content), dtype=torch.uint8)
    return mapped.view(tensor.dtype).view(tensor.shape)


def _written(content: memoryview) -> _Map:
    """Return a private map of a sealed file with that content. The file is freed with the last tensor in it."""
    descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for begin in range(0, content.nbytes, _CHUNK_BYTES):
            chunk = content[begin : begin + _CHUNK_BYTES]
            while chunk:
                written = os.write(descriptor, chunk)
                chunk = chunk[written:]
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        flags, protection = mmap.MAP_PRIVATE | NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        mapped = _Map(descriptor, content.nbytes, flags=flags, prot=protection)
        inode = os.fstat(descriptor).st_ino
    except OSError as error:
        os.close(descriptor)
        raise UsageError(
            f"shared can't copy {bytes_text(content.nbytes)} into memory ({error.strerror}): let workers "
            "read the data from files, as with numpy.memmap"
        ) from error
    _files[inode] = descriptor
    weakref.finalize(mapped, _close, inode).atexit = False
    return mapped


def _close(inode: int) -> None:
    os.close(_files.pop(inode))


def memory_file(inode: int) -> str | None:
    """Return the path under which workers find a file that `shared` has made; None for another file in memory."""
    descriptor = _files.get(inode)
    return None if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}"
