"""A rank's own folder on the drive: the engine names its files by nothing but parameters and ranks."""

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
    """Folders in those that a configuration names for what is on "nvme", and which only this process has.

    They go with it: closed, at the end of the process, or, where that was killed, when another run comes.

    Args:
        config: the engine's, complete; its paths become those of the new folders.

    Attributes:
        paths: of the folders.
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
        """Remove the folders with all that is in them. Nothing may use them any more."""
        self._close()


def remove_forgotten(drive: str) -> None:
    """Remove folders whose process is gone: the system has let go of its lock."""
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
    """Make a folder; its lock is held before there is anything to be removed."""
    while True:
        descriptor, lock = tempfile.mkstemp(LOCK, PREFIX, drive)
        # A file system that knows no locks only keeps what a killed process leaves: no one can lock there.
        with contextlib.suppress(OSError):
            _hold(descriptor, wait=True)
        # Another run may have taken it for forgotten before that.
        if os.path.exists(lock):
            folder = Path(lock).with_suffix("")
            folder.mkdir()
            return folder, descriptor
        os.close(descriptor)


def _hold(descriptor: int, wait: bool) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _remove(folders: list[Path], descriptors: list[int], owner: int) -> None:
    # Not in a process that was forked from it.
    if os.getpid() != owner:
        return
    while folders:
        folder, descriptor = folders.pop(), descriptors.pop()
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(LOCK).unlink(missing_ok=True)
        os.close(descriptor)
