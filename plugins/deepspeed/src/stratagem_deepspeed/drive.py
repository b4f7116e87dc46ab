"""A folder per process for offloading to NVMe: the engine's file names contain only parameter numbers and ranks."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

PREFIX, LOCK = "stratagem-", ".lock"
SECTIONS = ("offload_param", "offload_optimizer")


class OwnFolders:
    """Creates folders for this process alone, inside the folders that the configuration names for "nvme".

    They are removed by `close`, at the end of the process, or, if it was killed, by the next run.

    Args:
        config: the engine's complete configuration; its paths are replaced by those of the new folders.

    Attributes:
        paths: of the new folders.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        made: dict[str, Path] = {}
        self.paths: list[Path] = []
        descriptors: list[int] = []
        self._close = weakref.finalize(self, _remove, self.paths, descriptors, os.getpid())
        for section in SECTIONS:
            options = config["zero_optimization"].get(section) or {}
            if options.get("device") != "nvme":
                continue
            drive = os.path.realpath(options["nvme_path"])
            if drive not in made:
                remove_forgotten(drive)
                made[drive], descriptor = _make(drive)
                self.paths.append(made[drive])
                descriptors.append(descriptor)
            options["nvme_path"] = str(made[drive])

    def close(self) -> None:
        """Remove the folders with their contents. Nothing may use them any more."""
        self._close()


def remove_forgotten(drive: str) -> None:
    """Remove folders whose process has ended: the system has released its lock."""
    for lock in Path(drive).glob(f"{PREFIX}*{LOCK}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR)
            try:
                _hold(descriptor, wait=False)
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()
            finally:
                os.close(descriptor)


def _make(drive: str) -> tuple[Path, int]:
    """Create a folder. Its lock is taken first, so that no other run removes the new folder."""
    while True:
        descriptor, lock = tempfile.mkstemp(LOCK, PREFIX, drive)
        # On a file system without locks, folders of killed processes stay: `remove_forgotten` can't lock either.
        with contextlib.suppress(OSError):
            _hold(descriptor, wait=True)
        # Before it was locked, another run may have removed it as forgotten.
        if os.path.exists(lock):
            folder = Path(lock).with_suffix("")
            folder.mkdir()
            return folder, descriptor
        os.close(descriptor)


def _hold(descriptor: int, wait: bool) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _remove(folders: list[Path], descriptors: list[int], owner: int) -> None:
    # A forked child inherits the finalizer and must not remove its parent's folders.
    if os.getpid() != owner:
        return
    while folders:
        folder, descriptor = folders.pop(), descriptors.pop()
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(LOCK).unlink(missing_ok=True)
        os.close(descriptor)
