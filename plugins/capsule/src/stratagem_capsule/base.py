"""What a step starts from: a checkpoint of which links are kept, or the beginning of the run."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


def link_checkpoint(path: Path, to: Path) -> Path:
    """Return a folder with a checkpoint's files that outlives the checkpoint's removal, by hard links.

    Args:
        path: of the checkpoint, a folder.
        to: the folder to make; `path` itself is returned where links can't be made, as on another file system.
    """
    path = path.resolve()
    if path == to.resolve() or to.exists():
        return to
    try:
        for folder, _, names in os.walk(path):
            there = to / os.path.relpath(folder, path)
            there.mkdir(parents=True, exist_ok=True)
            for name in names:
                os.link(os.path.join(folder, name), there / name)
    except OSError:
        return path
    return to


def checksums(prepared: Any) -> dict[str, int]:
    """Return a number of the bits of each parameter and buffer of this rank, by name. Collective."""
    return {name: _checksum(tensor) for name, tensor in prepared.model_tensors().items()}


def first_non_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return the first name whose tensor isn't finite, as far as this rank has it; "" for none. Waits."""
    for name, tensor in tensors:
        local = getattr(tensor, "to_local", lambda tensor=tensor: tensor)().detach()
        if local.is_floating_point() and not bool(torch.isfinite(local).all()):
            return name
    return ""


def _checksum(tensor: torch.Tensor) -> int:
    whole = getattr(tensor, "full_tensor", lambda: tensor)().detach().cpu().contiguous()
    return zlib.crc32(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
