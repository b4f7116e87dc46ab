"""Refuses pipes and devices, since reading them may block or never end."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from stratagem.errors import CheckpointError

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def require_regular(path: str) -> None:
    """Refuse an existing path that is neither a regular file nor a folder.

    Raises:
        CheckpointError: names what it is.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # opening it will raise a better error
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise CheckpointError(
                f"{path} is {name}, and a checkpoint has only regular files: check the path, or copy it to a file"
            )


def open_regular(path: str, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        CheckpointError: it is something else.
        OSError: it can't be opened.
    """
    require_regular(path)
    return open(path, "rb", buffering=buffering)
