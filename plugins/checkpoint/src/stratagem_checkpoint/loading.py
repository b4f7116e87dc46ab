"""Opens and reads a checkpoint directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from stratagem import CheckpointReader
from stratagem.errors import CheckpointError, nearest
from stratagem.sdk.states import TensorInfo
from stratagem_checkpoint.agreement import on_every_rank
from stratagem_checkpoint.checked_files import check_files, verify_share
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.manifest import Manifest, decode_manifest
from stratagem_checkpoint.publication import MANIFEST, locate, unfinished
from stratagem_checkpoint.reading import is_plain, read_parts, whole
from stratagem_checkpoint.state_files import read_state
from stratagem_checkpoint.strict_json import MANIFEST_LIMIT_BYTES, check_limit

if TYPE_CHECKING:
    from stratagem import Collectives


def find_manifest(filesystem: Filesystem, path: str, shown: str, verify: bool = True) -> tuple[str, Manifest]:
    """Find the checkpoint called `path` and check that it is complete.

    Args:
        filesystem: that of `path`.
        path: in that file system's form.
        shown: how errors name it.
        verify: whether checksums are compared.

    Returns:
        Where it is, and its manifest.

    Raises:
        CheckpointError: says what is wrong with it.
    """
    folder, manifest = read_manifest(filesystem, path, shown, verify)
    check_files(filesystem, folder, manifest.files, shown, verify)
    return folder, manifest


def read_manifest(filesystem: Filesystem, path: str, shown: str, verify: bool = True) -> tuple[str, Manifest]:
    """Like `find_manifest`, without checking the files that the manifest names."""
    _, name = filesystem.split(path)
    intended = unfinished(name)
    if intended is not None:
        raise CheckpointError(
            f"{shown} is an unfinished checkpoint: its writer has stopped, or is still writing; "
            f"load {intended} in the same folder, or an earlier one"
        )
    folder = locate(filesystem, path)
    if not filesystem.exists(folder):
        raise CheckpointError(f"there is no checkpoint at {shown}; check the path")
    if not filesystem.is_directory(folder):
        raise CheckpointError(
            f"{shown} is a file, but a checkpoint is a directory; files such as .ckpt and .pt are pickles, which "
            "aren't loaded because that would run the code in them: see `stratagem checkpoint convert`"
        )
    size_bytes = filesystem.size(filesystem.join(folder, MANIFEST))
    if size_bytes is None:
        raise CheckpointError(
            f"{shown} is not a checkpoint: it has no {MANIFEST}; give the directory that has one"
        )
    check_limit(size_bytes, MANIFEST_LIMIT_BYTES, f"{shown}'s {MANIFEST}")
    text = filesystem.read(filesystem.join(folder, MANIFEST), size_bytes)
    return folder, decode_manifest(text, shown, verify)


class DirectoryReader(CheckpointReader):
    """Reads a checkpoint that `find_manifest` has found. Made on every rank.

    Args:
        collectives: of all ranks.
        filesystem: that of `folder`.
        folder: where the checkpoint is.
        manifest: what is in it.
        shown: how errors name it.
        verify: whether checksums are compared.
        share: this rank's index among the ranks that see this folder, and their number; None means all ranks.
    """

    def __init__(
        self,
        collectives: Collectives,
        filesystem: Filesystem,
        folder: str,
        manifest: Manifest,
        shown: str,
        verify: bool = True,
        share: tuple[int, int] | None = None,
    ) -> None:
        self._share = share or (collectives.rank, collectives.world_size)
        self._collectives = collectives
        self._filesystem = filesystem
        self._folder = folder
        self._manifest = manifest
        self._shown = self.path = shown
        self._verify = verify
        self.world_size = manifest.world_size
        self.tensors = {
            key: TensorInfo(record.shape, record.dtype) for key, record in manifest.readable().items()
        }
        self.state: Mapping[str, Any] = self._read_state("state")

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        if not 0 <= rank < self.world_size:
            return None
        return self._read_state(f"rank-{rank:05d}")

    def verify(self) -> None:
        if self._verify:
            index, count = self._share
            on_every_rank(
                self._collectives,
                lambda: verify_share(self._filesystem, self._folder, self._manifest.files, index, count),
            )

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        def check() -> None:
            for key, target in targets.items():
                self._check_target(key, target)

        on_every_rank(self._collectives, check)
        on_every_rank(self._collectives, lambda: self._read(targets))

    def _read(self, targets: Mapping[str, torch.Tensor]) -> None:
        if all(is_plain(target) for target in targets.values()):
            parts = whole(self._manifest, targets)
            read_parts(self._filesystem, self._folder, self._manifest, parts, self._verify)
            return
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

        from stratagem_checkpoint.safetensors_storage import SafetensorsReader

        # Each rank plans separately: torch's load planner needs no information from other ranks.
        reader = SafetensorsReader(self._filesystem, self._folder, self._manifest, self._verify)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(targets), reader.read_metadata(), self._collectives.rank == 0)
        plan = planner.finish_plan(planner.create_local_plan())
        reader.read_data(plan, planner).wait()

    def _check_target(self, key: str, target: torch.Tensor) -> None:
        info = self.tensors.get(key)
        if info is None:
            raise CheckpointError(f"{self._shown} has no tensor {key!r}{self._nearest(key)}")
        if tuple(target.shape) != info.shape:
            raise CheckpointError(
                f"tensor {key!r} has shape {info.shape} in {self._shown} but {tuple(target.shape)} is to be filled; "
                "build the model with the sizes it was saved with"
            )
        if info.dtype.is_complex and not target.dtype.is_complex:
            raise CheckpointError(
                f"tensor {key!r} is {info.dtype} in {self._shown} and can't be read into {target.dtype}, "
                "which would drop its imaginary part; load it into a complex tensor"
            )
        if target.is_meta:
            raise CheckpointError(
                f"tensor {key!r} can't be filled: it is on the meta device; materialize it first"
            )
        if any(each.is_partial() for each in getattr(target, "placements", ())):  # a DTensor's
            raise CheckpointError(
                f"tensor {key!r} can't be filled: it has a partial placement; redistribute it first"
            )

    def _nearest(self, key: str) -> str:
        near = nearest(key, self.tensors, "")
        return near and f"; {near}"

    def _read_state(self, stem: str) -> Mapping[str, Any]:
        return read_state(self._filesystem, self._folder, stem, self._manifest, self._verify)
