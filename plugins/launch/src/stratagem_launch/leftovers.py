"""Directories of launches whose process was killed; the next launch on the node removes them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

_OWNER = "owner"
"""File in a launch's directory that stays locked while its process, or a worker forked from it, lives.

A process id would not do: another host or container may share the folder for temporary files.
"""


@contextlib.contextmanager
def folder_lock(directory: str) -> Iterator[None]:
    """Lock `directory` while a launch uses it, and remove unused directories of other launches. A context manager.

    Args:
        directory: its path. Names of other launches' directories are equal up to the last hyphen.
    """
    folder, name = os.path.split(directory)
    prefix = name[: name.rindex("-") + 1]
    for other in os.listdir(folder):
        if other.startswith(prefix) and other != name:
            _remove_unused(os.path.join(folder, other))
    handle = os.open(os.path.join(directory, f"{_OWNER}.unfinished"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Some network file systems have no locks: the directory then is never removed by other launches.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(os.path.join(directory, f"{_OWNER}.unfinished"), os.path.join(directory, _OWNER))
        yield
    finally:
        os.close(handle)


def _remove_unused(directory: str) -> None:
    with contextlib.suppress(OSError):  # it isn't ours, is just being made or removed, or is in use
        handle = os.open(os.path.join(directory, _OWNER), os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(handle)
