"""Storage for torch.distributed.checkpoint: safetensors files described by a manifest."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from stratagem.errors import CheckpointError
from stratagem_checkpoint.checked_files import FileRecord, write_checked
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.manifest import ChunkRecord, Manifest, TensorRecord
from stratagem_checkpoint.reading import Part, read_parts
from stratagem_checkpoint.safetensors_file import Chunk, encode_file


def tensors_file(rank: int) -> str:
    """The name of the file in which a rank writes tensors."""
    return f"tensors-{rank:05d}.safetensors"


def chunks_of(plan: SavePlan, planner: SavePlanner, file: str) -> tuple[dict[str, Chunk], list[WriteResult]]:
    """Return what a plan writes: chunks by their name in `file`, and what is to be said of them. Touches no file.

    Args:
        plan: of any rank; of another rank than the planner's only the second part of the answer counts.
        planner: finds the tensors when their turn comes.
        file: the name of the file that they go into.

    Raises:
        CheckpointError: something is no tensor, or two chunks would have one name.
    """
    chunks: dict[str, Chunk] = {}
    results: list[WriteResult] = []
    for item in plan.items:
        data = item.tensor_data
        if data is None:
            raise CheckpointError(f"{item.index.fqn!r} among the tensors of a checkpoint is no tensor")
        lengths = tuple(data.chunk.sizes)
        if math.prod(lengths) == 0:
            continue
        chunk = ChunkRecord(file, tuple(data.chunk.offsets), lengths)
        dtype = data.properties.dtype
        name = TensorRecord(dtype, tuple(data.size), ()).name(item.index.fqn, chunk)
        if name in chunks:
            raise CheckpointError(
                f"two chunks of tensors would both be called {name!r}; rename one of the keys"
            )
        chunks[name] = (dtype, lengths, _resolver(planner, item))
        results.append(WriteResult(item.index, dtype.itemsize * math.prod(lengths), chunk))
    return chunks, results


def tensor_records(metadata: Metadata, results: list[list[WriteResult]]) -> dict[str, TensorRecord]:
    """Return all tensors with their chunks, from what all ranks write."""
    chunks: dict[str, list[ChunkRecord]] = defaultdict(list)
    for result in (each for of_rank in results for each in of_rank):
        chunks[result.index.fqn].append(cast("ChunkRecord", result.storage_data))
    records = {}
    for key, tensor in metadata.state_dict_metadata.items():
        tensor = cast("TensorStorageMetadata", tensor)
        records[key] = TensorRecord(tensor.properties.dtype, tuple(tensor.size), tuple(chunks[key]))
    return records


class SafetensorsWriter(StorageWriter):
    """Writes `tensors-RANK.safetensors` into an existing folder: one file per rank that has a chunk.

    Attributes:
        files: what this rank has written, after `write_data`.
        tensors: the whole checkpoint's tensors, after `finish`, for the manifest.
    """

    def __init__(self, filesystem: Filesystem, folder: str) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._folder = folder
        self.files: list[FileRecord] = []
        self.tensors: dict[str, TensorRecord] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.files, self.tensors = [], {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        return None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=tensors_file(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        file = cast("str", plan.storage_data)
        chunks, results = chunks_of(plan, planner, file)
        if chunks:
            self.files.append(write_checked(self._filesystem, self._folder, file, encode_file(chunks)))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self.tensors = tensor_records(metadata, results)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class SafetensorsReader(StorageReader):
    """Reads the tensors of a checkpoint whose manifest has been read; tied keys read like any other."""

    def __init__(self, filesystem: Filesystem, folder: str, manifest: Manifest, verify: bool = True) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._folder = folder
        self._manifest = manifest
        self._verify = verify

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        return None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({key: _storage_metadata(tensor) for key, tensor in self._manifest.readable().items()})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        return None

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        # Chunks of a tensor don't overlap and aren't empty, so that no two have the same offsets.
        readable = self._manifest.readable()
        chunks = {
            name: {chunk.offsets: chunk for chunk in readable[name].chunks}
            for name in {item.storage_index.fqn for item in plan.items}
        }
        parts = [
            Part(
                item.storage_index.fqn,
                chunks[item.storage_index.fqn][tuple(item.storage_index.offset or ())],
                item.storage_offsets,
                partial(planner.resolve_tensor, item),
                partial(planner.commit_tensor, item),
            )
            for item in plan.items
        ]
        read_parts(self._filesystem, self._folder, self._manifest, parts, self._verify)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _resolver(planner: SavePlanner, item: WriteItem) -> Callable[[], torch.Tensor]:
    # Late, so that a copy that resolving makes (another device, a dense view) lives only for its turn.
    return cast("Callable[[], torch.Tensor]", partial(planner.resolve_data, item))


def _storage_metadata(tensor: TensorRecord) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=tensor.dtype),
        size=torch.Size(tensor.shape),
        chunks=[
            ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.lengths))
            for chunk in tensor.chunks
        ],
    )
