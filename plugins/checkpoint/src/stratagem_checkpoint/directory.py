"""`DirectoryCheckpointer`: checkpoints as directories of JSON and safetensors files."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from stratagem import Checkpoint, Checkpointer, CheckpointReader
from stratagem.errors import ConfigError
from stratagem_checkpoint.agreement import on_every_rank, on_first_rank
from stratagem_checkpoint.background import BackgroundSaves
from stratagem_checkpoint.checked_files import FileRecord, write_checked
from stratagem_checkpoint.commit import commit
from stratagem_checkpoint.filesystem import Filesystem, filesystem_for
from stratagem_checkpoint.loading import DirectoryReader, find_manifest
from stratagem_checkpoint.publication import MANIFEST, remove, temporary
from stratagem_checkpoint.state_files import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem import Collectives
    from stratagem_checkpoint.draft import Draft


class DirectoryCheckpointer(Checkpointer):
    """Writes and reads checkpoint directories, as docs/reference/checkpoint-format.md describes them.

    Paths may be local or URLs that fsspec knows, and must mean the same place on every rank.

    Args:
        collectives: those of the run; every method must be called on all of its ranks.
        async_: whether a resident process per rank writes while training continues; `close` ends it. Paths that only
            this process can reach, as memory://, are written before `save` returns. The setting `checkpoint.async`.

    Raises:
        ConfigError: `async_` is neither True nor False.
    """

    def __init__(self, collectives: Collectives, async_: bool = False) -> None:
        if not isinstance(async_, bool):
            raise ConfigError(f"checkpoint.async={async_!r} must be true or false")
        self._collectives = collectives
        self.is_async = async_
        self._background = BackgroundSaves(collectives) if async_ else None
        if async_:
            import stratagem_checkpoint.draft  # noqa: F401 : before the first save, which is to be as fast as others

    def filesystem(self, path: str) -> tuple[Filesystem, str]:
        """Return the file system of `path`, and the path in its form. Override it for other file systems.

        For saves in the background, the file system must be picklable.
        """
        return filesystem_for(path, MANIFEST)

    def save(self, path: str, checkpoint: Checkpoint) -> None:
        # Imported late: importing torch.distributed.checkpoint takes half as long as importing torch.
        from stratagem_checkpoint.draft import agree_on_draft

        self.wait()
        filesystem, target = self.filesystem(path)
        with torch.no_grad():
            draft = agree_on_draft(self._collectives, checkpoint)
            if self._background is not None and filesystem.is_shared:
                self._background.save(filesystem, target, path, draft)
            else:
                self._write(filesystem, target, path, draft)

    def _write(self, filesystem: Filesystem, target: str, shown: str, draft: Draft) -> None:
        collectives = self._collectives
        with ExitStack() as stack:
            folder = on_first_rank(collectives, lambda: stack.enter_context(temporary(filesystem, target)))

            def write() -> list[FileRecord]:
                return [
                    write_checked(filesystem, folder, name, parts_of(content))
                    for name, content in draft.contents.items()
                ]

            files = [record for of_rank in on_every_rank(collectives, write) for record in of_rank]
            on_first_rank(
                collectives, lambda: commit(filesystem, folder, target, draft.document, files, shown)
            )

    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        self.wait()
        filesystem, target = self.filesystem(path)
        folder, manifest = on_first_rank(
            self._collectives, lambda: find_manifest(filesystem, target, path, verify)
        )
        readers: list[DirectoryReader] = []

        def make() -> None:
            readers.append(DirectoryReader(self._collectives, filesystem, folder, manifest, path, verify))

        on_every_rank(self._collectives, make)
        return readers[0]

    def remove(self, path: str) -> None:
        filesystem, target = self.filesystem(path)
        if self._background is not None and self._background.is_busy:
            self._background.remove(filesystem, target)
        else:
            on_first_rank(self._collectives, lambda: remove(filesystem, target))

    def when_saved(self, action: Callable[[], object]) -> None:
        if self._background is not None:
            self._background.when_saved(action)
        else:
            action()

    def poll(self) -> None:
        if self._background is not None:
            self._background.poll()

    def wait(self) -> None:
        if self._background is not None:
            self._background.wait()

    def close(self, failed: bool = False) -> None:
        if self._background is not None:
            self._background.close(failed)
