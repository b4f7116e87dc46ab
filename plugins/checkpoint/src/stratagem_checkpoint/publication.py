"""How a checkpoint appears under its name all at once, and what a crash may leave beside it.

A writer works in `.NAME.tmp-TOKEN` and gives that its real name at the end. Where a checkpoint is
replaced, the two directories are swapped in one instant; where the system can't do that, the old one
steps aside as `.NAME.old-TOKEN` for the moment between two renames, and is found there after a crash.
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
    """The name of what a rank that writes in the background leaves in the folder when its files are there."""
    return f"written-{rank:05d}.json"


def unfinished(name: str) -> str | None:
    """The name that a writer's temporary directory called `name` was meant for; None for other names."""
    match = _BESIDE.fullmatch(name)
    return match["name"] if match and match["purpose"] == "tmp" else None


def locate(filesystem: Filesystem, path: str) -> str:
    """Where the checkpoint called `path` is: there, or aside if a writer died between two renames."""
    if filesystem.size(filesystem.join(path, MANIFEST)) is None:
        for aside in _asides(filesystem, path):
            return aside
    return path


@contextmanager
def temporary(filesystem: Filesystem, path: str) -> Iterator[str]:
    """Make a directory to write in, beside `path`; what is left of it afterwards is deleted.

    One rank only. First tidies up what dead writers left beside `path`.

    Raises:
        CheckpointError: `path` is something else than a checkpoint, which isn't replaced.
    """
    _check_replaceable(filesystem, path)
    _recover(filesystem, path)
    _sweep(filesystem, path)
    held = None
    while held is None:
        folder = _beside(filesystem, path, "tmp")
        filesystem.make_directory(folder)
        held = filesystem.hold(folder)
    with held:
        try:
            yield folder
        finally:
            # What can't be deleted now doesn't make the save fail: the next one sweeps it.
            with suppress(OSError):
                filesystem.remove(folder)


def publish(filesystem: Filesystem, folder: str, path: str) -> None:
    """Give the complete checkpoint in `folder` the name `path`; one that was there is deleted."""
    filesystem.sync(folder)
    if not filesystem.exists(path):
        filesystem.move(folder, path)
    elif not filesystem.exchange(folder, path):
        aside = _beside(filesystem, path, "old")
        filesystem.move(path, aside)
        filesystem.move(folder, path)
        filesystem.remove(aside)


def remove(filesystem: Filesystem, path: str) -> None:
    """Delete the checkpoint at `path`, and what a dead writer left aside under its name.

    Raises:
        CheckpointError: there is something else than a checkpoint, which isn't deleted.
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
        # A whole old checkpoint of another name may be the only one that its run has.
        keep = match["purpose"] == "old" and MANIFEST in files
        if not keep and all(_UNFINISHED.fullmatch(file) for file in files):
            filesystem.remove_unheld(folder)


def _asides(filesystem: Filesystem, path: str) -> list[str]:
    """Whole checkpoints called `path` that stepped aside."""
    parent, own = filesystem.split(path)
    pattern = re.compile(re.escape(f".{own}.old-") + "[0-9a-f]{16}")
    found = [filesystem.join(parent, name) for name in filesystem.names(parent) if pattern.fullmatch(name)]
    return [folder for folder in found if filesystem.size(filesystem.join(folder, MANIFEST)) is not None]


def _beside(filesystem: Filesystem, path: str, purpose: str) -> str:
    parent, name = filesystem.split(path)
    return filesystem.join(parent, f".{name}.{purpose}-{secrets.token_hex(8)}")
