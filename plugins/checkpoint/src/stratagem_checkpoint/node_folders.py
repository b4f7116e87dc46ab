"""Checkpoints in node-local folders: every rank writes its files into its node's folder.

The caller copies files to where they are needed, and then writes the manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stratagem_checkpoint.agreement import on_every_rank
from stratagem_checkpoint.checked_files import FileRecord, write_checked
from stratagem_checkpoint.loading import DirectoryReader, find_manifest
from stratagem_checkpoint.local_filesystem import LocalFilesystem
from stratagem_checkpoint.manifest import Manifest, decode_manifest
from stratagem_checkpoint.manifest_text import sealed
from stratagem_checkpoint.publication import MANIFEST
from stratagem_checkpoint.state_files import parts_of

if TYPE_CHECKING:
    from stratagem import Checkpoint, Collectives


def write_node_folder(
    collectives: Collectives, folder: str, checkpoint: Checkpoint
) -> tuple[list[str], bytes]:
    """Write this rank's files into an existing folder of its node. Collective.

    Returns:
        Their names, and the manifest of all ranks' files, which makes a folder that has them a checkpoint.

    Raises:
        CheckpointError: something can't be saved or written; on every rank.
    """
    # Loaded late: torch.distributed.checkpoint takes half as long to import as torch itself.
    from stratagem_checkpoint.draft import agree_on_draft

    filesystem = LocalFilesystem(MANIFEST)
    with torch.no_grad():
        draft = agree_on_draft(collectives, checkpoint)

        def write() -> list[FileRecord]:
            return [
                write_checked(filesystem, folder, name, parts_of(content))
                for name, content in draft.contents.items()
            ]

        written = on_every_rank(collectives, write)
    files = [record for of_rank in written for record in of_rank]
    return [record.name for record in written[collectives.rank]], sealed(draft.document, files)


def file_sizes(manifest: bytes, shown: str) -> dict[str, int]:
    """Return the sizes in bytes of all files of a checkpoint, by name, as its manifest says.

    Args:
        manifest: as `write_node_folder` returned it.
        shown: how errors name the checkpoint.

    Raises:
        CheckpointError: it is damaged.
    """
    return {record.name: record.size_bytes for record in decode_manifest(manifest, shown, True).files}


def open_node_folder(
    collectives: Collectives, folder: str, shown: str, verify: bool = True
) -> DirectoryReader:
    """Open a checkpoint of which each rank's node has every file and the manifest. Collective.

    Raises:
        CheckpointError: a node's folder isn't a whole checkpoint; on every rank.
    """
    filesystem = LocalFilesystem(MANIFEST)
    found: list[Manifest] = []

    def find() -> None:
        found.append(find_manifest(filesystem, folder, shown, verify)[1])

    readers: list[DirectoryReader] = []

    def make() -> None:
        readers.append(DirectoryReader(collectives, filesystem, folder, found[0], shown, verify, share))

    on_every_rank(collectives, find)
    nodes = collectives.gather_objects(collectives.node_rank)
    of_node = [rank for rank, node in enumerate(nodes) if node == collectives.node_rank]
    share = (of_node.index(collectives.rank), len(of_node))
    on_every_rank(collectives, make)
    return readers[0]
