"""The last step of a save, on rank 0: writes the manifest and renames the folder. Doesn't import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratagem_checkpoint.checked_files import FileRecord, check_files, write_checked
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.manifest_text import sealed
from stratagem_checkpoint.publication import MANIFEST, publish
from stratagem_checkpoint.strict_json import MANIFEST_LIMIT_BYTES, check_limit


def commit(
    filesystem: Filesystem,
    folder: str,
    target: str,
    document: Mapping[str, Any],
    files: Sequence[FileRecord],
    shown: str,
) -> None:
    """Complete a checkpoint from the files that all ranks have written to `folder`, and rename it to `target`.

    Args:
        filesystem: that of both.
        folder: where the files are.
        target: the checkpoint's path in the file system's form.
        document: of the manifest, as `Manifest.document` returns it.
        files: of all ranks.
        shown: how errors name the checkpoint.

    Raises:
        CheckpointError: a file isn't there, or there are too many.
    """
    # A file that this rank can't see was written to the local disk of another machine.
    check_files(filesystem, folder, files, f"{shown}, seen from rank 0 right after it was written,")
    manifest = sealed(document, files)
    check_limit(len(manifest), MANIFEST_LIMIT_BYTES, f"{shown}'s {MANIFEST}")
    write_checked(filesystem, folder, MANIFEST, [manifest])
    publish(filesystem, folder, target)
