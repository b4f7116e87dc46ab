"""The ranks' agreement before a checkpoint is written: which rank writes which files, and the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from stratagem_checkpoint.agreement import on_every_rank
from stratagem_checkpoint.checked_files import FileRecord
from stratagem_checkpoint.manifest import Manifest
from stratagem_checkpoint.safetensors_storage import chunks_of, tensor_records, tensors_file
from stratagem_checkpoint.saving import agree_on_plan
from stratagem_checkpoint.state_files import Content, state_contents
from stratagem_checkpoint.state_json import encode_state

if TYPE_CHECKING:
    from stratagem import Checkpoint, Collectives


@dataclass(frozen=True)
class Draft:
    """A checkpoint as one rank sees it, before a byte of it is written."""

    contents: Mapping[str, Content]
    """This rank's files by name. Tensors are only resolved when they are written."""
    document: Mapping[str, Any]
    """The manifest's document, from `Manifest.document`; equal on every rank."""


def agree_on_draft(collectives: Collectives, checkpoint: Checkpoint) -> Draft:
    """Encode states, and divide the writing among all ranks. Collective; touches no file.

    Raises:
        CheckpointError: something can't be saved; raised on every rank.
    """
    rank = collectives.rank
    contents: dict[str, Content] = {}

    def encode() -> list[str]:
        # Only rank 0 writes `state`. Every rank encodes its own rank_state, so that errors show on any rank.
        contents.update(state_contents(f"rank-{rank:05d}", encode_state(checkpoint.rank_state, "rank_state")))
        if rank == 0:
            contents.update(state_contents("state", encode_state(checkpoint.state, "state")))
        return list(contents)

    names = [name for of_rank in on_every_rank(collectives, encode) for name in of_rank]
    plan = agree_on_plan(collectives, checkpoint.tensors)
    results = []
    for of_rank, each in enumerate(plan.plans):
        chunks, written = chunks_of(each, plan.planner, tensors_file(of_rank))
        results.append(written)
        if chunks:
            names.append(tensors_file(of_rank))
        if chunks and of_rank == rank:
            # First, since it is the largest file, and errors in it show early.
            contents = {tensors_file(rank): chunks, **contents}
    tensors = tensor_records(plan.metadata, results)
    manifest = Manifest(
        world_size=collectives.world_size,
        files=tuple(FileRecord(name, 0, "") for name in sorted(names)),
        tensors=tensors,
        aliases=plan.aliases,
        stratagem_version=_version(),
        torch_version=torch.__version__,
    )
    return Draft(contents, manifest.document())


def _version() -> str:
    try:
        return version("stratagem-core")
    except PackageNotFoundError:
        return "unknown"
