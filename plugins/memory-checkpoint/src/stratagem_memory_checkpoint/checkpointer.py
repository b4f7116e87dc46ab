"""`PeerCheckpointer`: checkpoints in nodes' memory. Each node has the files of its ranks and of a neighbour's."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stratagem_checkpoint import MANIFEST, file_sizes, on_every_rank, open_node_folder, write_node_folder

from stratagem import CheckpointerWrapper
from stratagem.errors import CheckpointError, ConfigError
from stratagem_memory_checkpoint.exchange import copy_missing, copy_to_neighbours

if TYPE_CHECKING:
    from stratagem import Checkpoint, Checkpointer, CheckpointReader, Collectives

SCHEME = "peers://"


class PeerCheckpointer(CheckpointerWrapper):
    """Keeps the newest two checkpoints of paths "peers://NAME" in memory; `inner` has all other paths.

    A node's folder has the files that its own ranks wrote, and those of the node before it. So a checkpoint is whole
    as long as no two neighbouring nodes are lost. Its manifest is written on every node when all files are
    where they belong: what has one on any node is complete.

    Args:
        inner: the run's checkpointer.
        collectives: those of the run.
        folder: of this node; None where nothing started this process that could start another in its place.
        node_unit: number of nodes that the run loses together.
    """

    def __init__(
        self, inner: Checkpointer, collectives: Collectives, folder: str | None, node_unit: int = 1
    ) -> None:
        super().__init__(inner)
        self._collectives, self._folder, self._node_unit = collectives, folder, node_unit

    def save(self, path: str, checkpoint: Checkpoint) -> None:
        if not path.startswith(SCHEME):
            self.inner.save(path, checkpoint)
            return
        collectives, folder = self._collectives, self._path(path)
        on_every_rank(collectives, lambda: self._make_room(folder))
        with _explained_when_full(path):
            mine, manifest = write_node_folder(collectives, folder, checkpoint)
            copy_to_neighbours(collectives, folder, mine, self._node_unit)
        on_every_rank(collectives, lambda: self._complete(folder, manifest))

    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        if not path.startswith(SCHEME):
            return self.inner.open(path, verify)
        collectives, folder = self._collectives, self._path(path)
        on_every_rank(collectives, lambda: os.makedirs(folder, exist_ok=True))
        manifests = collectives.gather_objects(_read(folder))
        manifest = next((each for each in manifests if each is not None), None)
        if manifest is None:
            raise CheckpointError(f"no node has a whole checkpoint {path} in its memory")
        with _explained_when_full(path):
            copy_missing(collectives, folder, file_sizes(manifest, path), path)
        on_every_rank(collectives, lambda: self._complete(folder, manifest))
        return open_node_folder(collectives, folder, path, verify)

    def remove(self, path: str) -> None:
        if not path.startswith(SCHEME):
            self.inner.remove(path)
            return
        on_every_rank(self._collectives, lambda: self._remove(self._path(path)))

    def _path(self, path: str) -> str:
        if self._folder is None:
            raise ConfigError(
                f"{path} can't be kept in memory: nothing here starts workers again, as --max-restarts of "
                "`stratagem fit` does; leave --checkpoint-memory out"
            )
        name = path.removeprefix(SCHEME)
        if not re.fullmatch(r"[A-Za-z0-9_=-]+", name):
            raise CheckpointError(
                f"{path!r} is no name of a checkpoint in memory: use letters, digits, _, = and -"
            )
        return os.path.join(self._folder, name)

    def _make_room(self, folder: str) -> None:
        """Keep the newest whole checkpoint alone, and nothing of an earlier attempt at this one."""
        if self._collectives.local_rank == 0:
            assert self._folder is not None
            kept = [entry.path for entry in os.scandir(self._folder) if _read(entry.path) is not None]
            newest = max(
                kept, key=lambda each: os.stat(os.path.join(each, MANIFEST)).st_mtime_ns, default=None
            )
            for entry in os.scandir(self._folder):
                if entry.is_dir() and (entry.path != newest or entry.path == folder):
                    self._remove(entry.path)
            os.makedirs(folder)

    def _complete(self, folder: str, manifest: bytes) -> None:
        path = os.path.join(folder, MANIFEST)
        if self._collectives.local_rank == 0 and not os.path.exists(path):
            with open(f"{path}.part", "wb") as file:
                file.write(manifest)
            os.replace(f"{path}.part", path)

    def _remove(self, folder: str) -> None:
        if self._collectives.local_rank == 0:
            # What makes it a checkpoint goes first.
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, MANIFEST))
            shutil.rmtree(folder, ignore_errors=True)


def _read(folder: str) -> bytes | None:
    """The manifest in a node's folder; None where there is none, so that the checkpoint isn't complete."""
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def _explained_when_full(path: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise CheckpointError(
            f"{path} doesn't fit into memory ({error}): a node needs room for two checkpoints of its ranks' shards "
            "and its neighbour's in its tmpfs, in a container by --shm-size; or leave --checkpoint-memory out"
        ) from error
