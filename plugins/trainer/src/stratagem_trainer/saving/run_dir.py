"""The run's folder: check that a run can write there, and lock it against other runs."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stratagem.errors import ConfigError
from stratagem.sdk.selection import path_text

if TYPE_CHECKING:
    from stratagem import Runtime

LOCK = ".lock"
"""File in a run's folder that is locked while a run writes there. It names the process that has the lock."""


def absolute_run_dir(path: str | os.PathLike[str]) -> str:
    """Return the folder's path, absolute.

    Raises:
        ConfigError: it is empty or a URL.
    """
    text = path_text("run_dir", path)
    if not text:
        raise ConfigError("run_dir is empty: name a folder, or leave it out for runs/<time>-<class>")
    if "://" in text:
        raise ConfigError(
            f"run_dir={text!r} is a URL, but metrics and settings are written to a folder of this machine: name one, "
            "and pass the URL to ModelCheckpoint(dirpath=…) to write the checkpoints there"
        )
    return os.path.abspath(text)


def refuse_unusable(run_dir: str | None, root: str | None, is_only_node: bool) -> None:
    """Refuse a run's folder that isn't writable, or that another run is using. Changes nothing.

    Args:
        run_dir: an absolute path; None for a new folder in runs/ of `root`.
        root: the folder that has runs/; None for the current folder.
        is_only_node: whether the run has a single node. On several, a lock may belong to another node of this run.

    Raises:
        ConfigError: names the folder and the reason.
    """
    refuse_unwritable("the run folder", run_dir or os.path.abspath(os.path.join(root or ".", "runs")))
    if run_dir is not None and is_only_node and os.path.exists(os.path.join(run_dir, LOCK)):
        descriptor, refusal = _take(run_dir)
        if descriptor is not None:
            os.close(descriptor)
        if refusal is not None:
            raise ConfigError(refusal)


def refuse_unwritable(what: str, wanted: str) -> None:
    """Refuse a folder that isn't writable. Changes nothing.

    Args:
        what: name of the folder in the message.
        wanted: absolute path; it may not exist yet.

    Raises:
        ConfigError: names the folder and the reason.
    """
    found = wanted
    shown = wanted if len(wanted) < 200 else f"{wanted[:200]}…"
    try:
        os.stat(wanted)
    except (FileNotFoundError, NotADirectoryError):
        while not os.path.lexists(found):
            found = os.path.dirname(found)
    except OSError as error:
        raise ConfigError(f"{what} {shown} can't be used: {error.strerror}; name another") from error
    if not os.path.isdir(found):
        raise ConfigError(f"{what} {shown} can't be made: {found} is a file; name another")
    try:
        # Try to write a file: os.access doesn't know all reasons for which a file system refuses.
        with tempfile.TemporaryFile(dir=found):
            pass
    except OSError as error:
        raise ConfigError(
            f"{what} {shown} can't be written: {error.strerror} in {found}; name another"
        ) from error


@contextmanager
def locked(runtime: Runtime, run_dir: str | None) -> Iterator[None]:
    """Make the run's folder, and lock it against other runs until the end. Collective. A context manager.

    The kernel releases the lock when rank 0's process ends in any way. Processes that it has forked don't hold the
    lock. File systems without locks are not protected.

    Raises:
        ConfigError: another run uses the folder. Raised on all ranks.
    """
    descriptor: int | None = None
    refusal: str | None = None
    if runtime.is_main and run_dir is not None:
        os.makedirs(run_dir, exist_ok=True)
        descriptor, refusal = _take(run_dir)
    refusal = runtime.broadcast(refusal)
    if refusal is not None:
        raise ConfigError(refusal)
    try:
        yield
    finally:
        if descriptor is not None and run_dir is not None:
            with suppress(OSError):
                os.unlink(os.path.join(run_dir, LOCK))
            os.close(descriptor)


def _take(run_dir: str) -> tuple[int | None, str | None]:
    """Lock the folder; return an open descriptor to close later, or the reason why another run has the lock."""
    try:
        import fcntl
    except ImportError:
        return None, None
    path = os.path.join(run_dir, LOCK)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return None, None
        try:
            # lockf's lock belongs to the process, flock's to the open file. A loader's workers would inherit the
            # latter, and they may outlive rank 0 by seconds.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            return None, (
                f"another run writes in {run_dir} ({holder}): name another folder with run_dir, or end that run first"
            )
        except OSError:
            os.close(descriptor)
            return None, None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return descriptor, None
        os.close(descriptor)  # the process that held the lock has just ended, and removed the file: try again
