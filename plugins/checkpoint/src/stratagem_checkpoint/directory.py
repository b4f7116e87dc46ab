"""`DirectoryCheckpointer`: checkpoints as directories of JSON and safetensors files."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch

from stratagem import Checkpoint, Checkpointer, CheckpointReader
from stratagem_checkpoint.agreement import on_every_rank, on_first_rank
from stratagem_checkpoint.checked_files import check_files, write_checked
from stratagem_checkpoint.filesystem import Filesystem, filesystem_for
from stratagem_checkpoint.loading import DirectoryReader, find_manifest
from stratagem_checkpoint.manifest import FileRecord, Manifest
from stratagem_checkpoint.publication import MANIFEST, publish, remove, temporary
from stratagem_checkpoint.state_files import write_state
from stratagem_checkpoint.state_json import encode_state
from stratagem_checkpoint.strict_json import MANIFEST_LIMIT_BYTES, check_limit

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import WriteResult

    from stratagem import Collectives
    from stratagem_checkpoint.safetensors_storage import SafetensorsWriter
    from stratagem_checkpoint.saving import AgreedPlan


class DirectoryCheckpointer(Checkpointer):
    """Writes and reads checkpoint directories, as docs/reference/checkpoint-format.md describes them.

    Paths may be local or URLs that fsspec knows, and must mean the same place on every rank.

    Args:
        collectives: those of the run; every method must be called on all of its ranks.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def filesystem(self, path: str) -> tuple[Filesystem, str]:
        """The file system of `path`, and the path in its form. To be overridden for others."""
        return filesystem_for(path, MANIFEST)

    def save(self, path: str, checkpoint: Checkpoint) -> None:
        # Loaded late: torch.distributed.checkpoint takes half as long to import as torch itself.
        from stratagem_checkpoint.safetensors_storage import SafetensorsWriter
        from stratagem_checkpoint.saving import agree_on_plan

        collectives = self._collectives
        filesystem, original_module = self.filesystem(path)

        def encode() -> None:
            # Only rank 0's state is written, but what no rank could write is an error wherever it is.
            encoded["rank"] = encode_state(checkpoint.rank_state, "rank_state")
            if collectives.rank == 0:
                encoded["state"] = encode_state(checkpoint.state, "state")

        encoded: dict[str, tuple[bytes, dict[str, torch.Tensor]]] = {}
        on_every_rank(collectives, encode)
        plan = agree_on_plan(collectives, checkpoint.tensors)

        with ExitStack() as stack, torch.no_grad():
            folder = on_first_rank(
                collectives, lambda: stack.enter_context(temporary(filesystem, original_module))
            )
            writer = SafetensorsWriter(filesystem, folder)
            plans = writer.prepare_global_plan(plan.plans)

            def write() -> tuple[list[FileRecord], list[WriteResult]]:
                future = writer.write_data(plans[collectives.rank], plan.planner)
                files = write_state(filesystem, folder, f"rank-{collectives.rank:05d}", encoded["rank"])
                return writer.files + files, future.value()

            def finish() -> None:
                files = write_state(filesystem, folder, "state", encoded["state"])
                files += [record for of_rank, _ in written for record in of_rank]
                writer.finish(plan.metadata, [results for _, results in written])
                manifest = _manifest(collectives.world_size, files, writer, plan)
                # What this rank can't see was written to another machine's own disk.
                check_files(
                    filesystem, folder, files, f"{path}, seen from rank 0 right after it was written,"
                )
                encoded_manifest = manifest.encode()
                check_limit(len(encoded_manifest), MANIFEST_LIMIT_BYTES, f"{path}'s {MANIFEST}")
                write_checked(filesystem, folder, MANIFEST, [encoded_manifest])
                publish(filesystem, folder, original_module)

            written = on_every_rank(collectives, write)
            on_first_rank(collectives, finish)

    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        filesystem, original_module = self.filesystem(path)
        folder, manifest = on_first_rank(
            self._collectives, lambda: find_manifest(filesystem, original_module, path, verify)
        )
        readers: list[DirectoryReader] = []

        def make() -> None:
            readers.append(DirectoryReader(self._collectives, filesystem, folder, manifest, path, verify))

        on_every_rank(self._collectives, make)
        return readers[0]

    def remove(self, path: str) -> None:
        filesystem, original_module = self.filesystem(path)
        on_first_rank(self._collectives, lambda: remove(filesystem, original_module))


def _manifest(
    world_size: int, files: list[FileRecord], writer: SafetensorsWriter, plan: AgreedPlan
) -> Manifest:
    try:
        ours = version("stratagem-core")
    except PackageNotFoundError:
        ours = "unknown"
    return Manifest(
        world_size=world_size,
        files=tuple(sorted(files, key=lambda record: record.name)),
        tensors=writer.tensors,
        aliases=plan.aliases,
        stratagem_version=ours,
        torch_version=torch.__version__,
    )
