"""A copy of the code that a run is to use, so that work can continue while it waits."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from stratagem.errors import ConfigError

SUFFIXES = (".cfg", ".ini", ".json", ".py", ".pyi", ".sh", ".toml", ".txt", ".yaml", ".yml")
"""Suffixes of files that count as code outside of git."""
MOST_BYTES = 10 * 2**20
"""A larger file is linked, not copied."""
MOST_FILES = 20_000
_NEITHER = (".git", "__pycache__", "node_modules")
"""Neither copied nor linked."""


def source_of(folder: str) -> tuple[str, str]:
    """Return the folder whose code is copied, a repository's where git knows one, and `folder` relative to it."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return folder, ""
    below = os.path.relpath(os.path.realpath(folder), os.path.realpath(root.strip()))
    return root.strip(), "" if below == "." else below


def take_snapshot(root: str, target: str) -> int:
    """Copy the code below a folder, and link what else is there, so that relative paths continue to work.

    Code is what git has or would add; outside of git, files with a suffix of `SUFFIXES`, without hidden folders and
    virtual environments. Folders of runs aren't code.

    Args:
        root: whose code it is.
        target: a folder that doesn't exist; may be below `root`.

    Returns:
        How many files were copied.

    Raises:
        ConfigError: there are more than `MOST_FILES`, or one can't be read.
    """
    tree: dict[str, Any] = {}
    copied = 0
    for path in _code_below(root):
        full = os.path.join(root, path)
        if not os.path.isfile(full) or os.path.getsize(full) > MOST_BYTES:
            continue
        copied += 1
        if copied > MOST_FILES:
            raise ConfigError(
                f"{root!r} has more than {MOST_FILES} files that look like code: submit from the folder of your "
                "code, or exclude other files by .gitignore"
            )
        *folders, name = path.split(os.sep)
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = None
    try:
        _copy(root, target, tree)
    except OSError as error:
        raise ConfigError(f"the code in {root!r} can't be copied to {target!r}: {error}") from error
    return copied


def _copy(source: str, target: str, tree: Mapping[str, Any]) -> None:
    """Copy the files that `tree` names (name → None, or a mapping for a folder), and link all others."""
    os.makedirs(target)
    for name in sorted(os.listdir(source)):
        found, made = os.path.join(source, name), os.path.join(target, name)
        if name not in tree:
            if name not in _NEITHER:
                os.symlink(os.path.abspath(found), made)
        elif tree[name] is None:
            shutil.copy2(found, made)
        else:
            _copy(found, made, tree[name])


def _code_below(root: str) -> Iterator[str]:
    """Paths relative to `root`."""
    tracked = _git(root, "ls-files", "-z", "--cached")
    if tracked is None:
        yield from _walked(root)
        return
    yield from filter(None, tracked.split("\0"))
    others = _git(root, "ls-files", "-z", "--others", "--exclude-standard") or ""
    for path in filter(None, others.split("\0")):
        folders = path.split("/")[:-1]
        if not any(_is_of_runs(root, "/".join(folders[: end + 1])) for end in range(len(folders))):
            yield path


def _walked(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NEITHER
            and not _is_of_runs(folder, name)
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        ]
        yield from (
            os.path.relpath(os.path.join(folder, name), root) for name in names if name.endswith(SUFFIXES)
        )


def _is_of_runs(folder: str, name: str) -> bool:
    """Whether a folder holds runs, or is one that was submitted."""
    return os.path.basename(name) == "runs" or os.path.isdir(os.path.join(folder, name, "place", "output"))


def _git(folder: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None
