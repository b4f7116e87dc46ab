"""Publishes a checkpoint atomically under its name, and cleans up after crashes.

A writer works in `.NAME.tmp-TOKEN` and renames it at the end. To replace a checkpoint, the two directories are
swapped atomically. If the system can't do that, the old one is first renamed to `.NAME.old-TOKEN`, and is found there
after a crash.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stratagem.errors import CheckpointError
from stratagem_checkpoint.filesystem import Filesystem

MANIFEST = "manifest.json"
"""The file that makes a directory a checkpoint; written last."""
FILE_NAME = re.compile(r"manifest\.json|(state|rank-\d{5,})\.(json|safetensors)|tensors-\d{5,}\.safetensors")
"""Names of all files that a checkpoint may have."""

_UNFINISHED = re.compile(rf"{FILE_NAME.pattern}|written-\d{{5,}}\.json")
"""Names of all files that an unfinished checkpoint may have."""
_BESIDE = re.compile(r"\.(?P<name>.+)\.(?P<purpose>tmp|old)-[0-9a-f]{16}")


def written_mark(rank: int) -> str:
    """Return the name of the mark file that a rank writes after its files, when it writes in the background."""
    return f"written-{rank:05d}.json"


def unfinished(name: str) -> str | None:
    """Return the checkpoint's name for which `name` is a temporary directory; None for other names."""
    match = _BESIDE.fullmatch(name)
    return match["name"] if match and match["purpose"] == "tmp" else None


def locate(filesystem: Filesystem, path: str) -> str:
    """Return where the checkpoint `path` is: there, or at `.NAME.old-TOKEN` if a writer died between two renames."""
    if filesystem.size(filesystem.join(path, MANIFEST)) is None:
        for aside in _asides(filesystem, path):
            return aside
    return path


@contextmanager
def temporary(filesystem: Filesystem, path: str) -> Iterator[str]:
    """Create a temporary directory next to `path`, and delete it afterwards if it still exists.

    For one rank only. First cleans up what dead writers left next to `path`.

    Raises:
        CheckpointError: `path` exists and isn't a checkpoint, so it isn't replaced.
    """
    _check_replaceable(filesystem, path)
    _recover(filesystem, path)
    _sweep(filesystem, path)
    held = None
    while held is None:
        folder = _sibling(filesystem, path, "tmp")
        filesystem.make_directory(folder)
        held = filesystem.hold(folder)
    with held:
        try:
            yield folder
        finally:
            # A failure to delete it doesn't make the save fail: the next save cleans up.
            with suppress(OSError):
                filesystem.remove(folder)


def publish(filesystem: Filesystem, folder: str, path: str) -> None:
    """Rename the complete checkpoint in `folder` to `path`, and delete the old one, if any."""
    filesystem.sync(folder)
    if not filesystem.exists(path):
        filesystem.move(folder, path)
    elif not filesystem.exchange(folder, path):
        aside = _sibling(filesystem, path, "old")
        filesystem.move(path, aside)
        filesystem.move(folder, path)
        filesystem.remove(aside)


def remove(filesystem: Filesystem, path: str) -> None:
    """Delete the checkpoint at `path`, and older versions that a dead writer left next to it.

    Raises:
        CheckpointError: `path` isn't a checkpoint, so it isn't deleted.
    """
    _check_replaceable(filesystem, path)
    for aside in _asides(filesystem, path):
        filesystem.remove(aside)
    filesystem.remove(path)


def _check_replaceable(filesystem: Filesystem, path: str) -> None:
    if not filesystem.exists(path):
        return
    if not filesystem.is_directory(path):
        raise CheckpointError(
            f"{path} is a file, not a checkpoint directory; choose another path or move it away"
        )
    foreign = [name for name in filesystem.names(path) if not FILE_NAME.fullmatch(name)]
    if foreign:
        raise CheckpointError(
            f"{path} is a directory with files that belong to no checkpoint ({foreign[0]}), so it is left as it is; "
            "choose another path or move it away"
        )


def _recover(filesystem: Filesystem, path: str) -> None:
    found = locate(filesystem, path)
    if found != path:
        filesystem.remove(path)
        filesystem.move(found, path)
    for aside in _asides(filesystem, path):
        filesystem.remove(aside)


def _sweep(filesystem: Filesystem, path: str) -> None:
    parent, _ = filesystem.split(path)
    for name in filesystem.names(parent):
        match = _BESIDE.fullmatch(name)
        if match is None:
            continue
        folder = filesystem.join(parent, name)
        files = filesystem.names(folder)
        # A complete old checkpoint of another name may be the only one of its run.
        keep = match["purpose"] == "old" and MANIFEST in files
        if not keep and all(_UNFINISHED.fullmatch(file) for file in files):
            filesystem.remove_unheld(folder)


def _asides(filesystem: Filesystem, path: str) -> list[str]:
    """Return complete old versions of `path`, as `.NAME.old-TOKEN`."""
    parent, own = filesystem.split(path)
    pattern = re.compile(re.escape(f".{own}.old-") + "[0-9a-f]{16}")
    found = [filesystem.join(parent, name) for name in filesystem.names(parent) if pattern.fullmatch(name)]
    return [folder for folder in found if filesystem.size(filesystem.join(folder, MANIFEST)) is not None]


def _sibling(filesystem: Filesystem, path: str, purpose: str) -> str:
    parent, name = filesystem.split(path)
    return filesystem.join(parent, f".{name}.{purpose}-{secrets.token_hex(8)}")
