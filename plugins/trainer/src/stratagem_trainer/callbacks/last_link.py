"""The folder of checkpoints, and the link `last` in it."""

from __future__ import annotations

import os


def folder_of(dirpath: str | None, run_dir: str | None, default: str) -> str:
    """Return the folder for checkpoints: an absolute path, or a URL.

    Args:
        dirpath: the user's folder; a relative one is within `run_dir`.
        run_dir: the run's folder; None is the current folder.
        default: the folder if `dirpath` is None.
    """
    if dirpath is None:
        folder = default
    elif is_url(dirpath) or os.path.isabs(dirpath):
        folder = dirpath
    elif run_dir is not None and is_url(run_dir):
        folder = f"{run_dir.rstrip('/')}/{dirpath}"
    else:
        folder = os.path.join(run_dir or ".", dirpath)
    return folder.rstrip("/") if is_url(folder) else os.path.abspath(folder)


def lies_in(folder: str, path: str) -> bool:
    """Return whether `path` is directly in `folder`, which `folder_of` returned."""
    start, _, name = path.rpartition("/")
    return start == folder and name not in ("", ".", "..") and os.path.basename(name) == name


def is_url(path: str) -> bool:
    """Return whether a path is a URL for fsspec, not a path on this machine."""
    return "://" in path


def can_link(path: str) -> bool:
    """Return whether a symbolic link can be made or replaced at `path`. Tries it, and removes the trial."""
    if is_url(path) or (os.path.exists(path) and not os.path.islink(path)):
        return False
    trial = f"{path}.link-{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink("nothing", trial)
        os.unlink(trial)
    except OSError:
        return False
    return True


def link(target: str, path: str) -> None:
    """Make `path` a relative link to `target`. An existing link is replaced atomically."""
    trial = f"{path}.link-{os.getpid()}"
    os.symlink(os.path.relpath(target, os.path.dirname(path)), trial)
    os.replace(trial, path)
