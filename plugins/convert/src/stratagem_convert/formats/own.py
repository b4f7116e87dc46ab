"""Stratagem's own checkpoints as one of the formats: read a model's tensors, and write weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from stratagem_checkpoint.checked_files import opened, write_checked
from stratagem_checkpoint.checksums import CheckedFile
from stratagem_checkpoint.filesystem import filesystem_for
from stratagem_checkpoint.loading import find_manifest
from stratagem_checkpoint.manifest import ChunkRecord, Manifest, TensorRecord
from stratagem_checkpoint.publication import MANIFEST, publish, temporary
from stratagem_checkpoint.safetensors_file import DTYPES
from stratagem_checkpoint.state_files import parts_of, read_state, state_contents
from stratagem_checkpoint.state_json import encode_state

from stratagem.errors import CheckpointError
from stratagem_convert.formats.own_training import (
    OPTIMIZER,
    training_of,
    training_state,
    training_tensors,
)
from stratagem_convert.formats.safetensors_files import header_of, safetensors_bytes
from stratagem_convert.formats.stored import Chunk, StoredTensor, Weights, WeightsReader

MODEL = "model/"
_FILE = "tensors-00000.safetensors"


def read_directory(path: str, prefix: str = MODEL) -> Weights:
    """Open the tensors of a checkpoint whose keys begin with `prefix`, which is removed from their names.

    Every byte is compared with its checksum when it is read.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    filesystem, name = filesystem_for(path, MANIFEST)
    folder, manifest = find_manifest(filesystem, name, path)
    records = {record.name: record for record in manifest.files}

    def open_file(file: str) -> AbstractContextManager[CheckedFile]:
        return opened(filesystem, folder, records[file], verify=True)

    starts: dict[tuple[str, str], int] = {}
    for file in records:
        if file.startswith("tensors-"):
            with open_file(file) as checked:
                header, _ = header_of(checked)
            starts.update({(file, stored): tensor.chunks[0].start for stored, tensor in header.items()})
    stored = {
        key: _stored(key, record, starts, path)
        for key, record in manifest.tensors.items()
        if key.startswith((prefix, OPTIMIZER))
    }
    tensors = {key.removeprefix(prefix): each for key, each in stored.items() if key.startswith(prefix)}
    aliases = {
        key.removeprefix(prefix): kept.removeprefix(prefix)
        for key, kept in manifest.aliases.items()
        if key.startswith(prefix) and kept.startswith(prefix)
    }
    state = read_state(filesystem, folder, "state", manifest, verify=True)
    of_optimizers = {key: each for key, each in stored.items() if key.startswith(OPTIMIZER)}
    of_optimizers.update(
        {key: stored[kept] for key, kept in manifest.aliases.items() if key.startswith(OPTIMIZER)}
    )
    training = None
    if prefix == MODEL:
        of_rank = read_state(filesystem, folder, "rank-00000", manifest, verify=True) if of_optimizers else {}
        training = training_of(state, of_rank, of_optimizers, path)
    others = len(manifest.readable()) - len(tensors) - len(aliases)
    left_out = _left_out(state, others, 0 if training is None else len(of_optimizers))
    return Weights(path, "stratagem", tensors, aliases, left_out, _facts(state), open_file, training)


def _left_out(state: Mapping[str, Any], others: int, of_optimizers: int) -> list[str]:
    """Return what isn't converted, also tensors of optimizers that aren't in the training's state."""
    left_out = []
    if of_optimizers:
        left_out.append("the place in the epoch's data, random numbers, and callbacks' states")
        if others > of_optimizers:
            left_out.append(f"{others - of_optimizers} tensors of callbacks")
    elif others:
        left_out.append(f"{others} tensors of optimizers and callbacks, and the run's state")
    prepared = state.get("prepared")
    for name, what in (("extra", "the extra state of"), ("precision", "the precision's")):
        entries = prepared.get(name) if isinstance(prepared, Mapping) else None
        if isinstance(entries, Mapping) and entries:
            left_out.append(f"{what} {next(iter(entries))}")
    return left_out


def _facts(state: Mapping[str, Any]) -> dict[str, str]:
    progress = state.get("progress")
    if not isinstance(progress, dict):
        return {}
    counts = {"epoch": progress.get("epoch"), "global_step": progress.get("step")}
    return {name: str(count) for name, count in counts.items() if isinstance(count, int)}


def _stored(key: str, record: TensorRecord, starts: Mapping[tuple[str, str], int], path: str) -> StoredTensor:
    chunks = []
    for chunk in record.chunks:
        start = starts.get((chunk.file, record.name(key, chunk)))
        if start is None:
            raise CheckpointError(
                f"{path} is damaged: {chunk.file} has no chunk of {key!r}; use another checkpoint"
            )
        chunks.append(Chunk(chunk.file, start, chunk.offsets, chunk.lengths))
    if not chunks:  # the tensor has no elements
        chunks = [Chunk(_FILE, 0, (0,) * len(record.shape), record.shape)]
    return StoredTensor(record.dtype, record.shape, tuple(chunks))


def write_directory(weights: Weights, path: str) -> None:
    """Write a checkpoint with only weights, for evaluations and for other runs' initial weights.

    If the weights have a training, write a checkpoint from which a fit can resume.
    """
    training = weights.training
    tensors = {MODEL + name: tensor for name, tensor in weights.tensors.items()}
    if training is not None:
        tensors.update(training_tensors(training))
    for key, tensor in tensors.items():
        if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
            name = key.removeprefix(MODEL)
            raise CheckpointError(f"{name!r} has dtype {tensor.dtype}, which checkpoints can't hold")
    filesystem, target = filesystem_for(path, MANIFEST)
    state = {"kind": "weights", "module": "", "prepared": {"extra": {}}, "converted_from": weights.format}
    # Use the checkpoint's keys as names in the reader, because it also reads tensors of optimizers.
    keyed = replace(weights, tensors=tensors, aliases={})
    with temporary(filesystem, target) as folder, WeightsReader(keyed) as reader:
        if training is not None:
            state = training_state(weights, training, reader)
        contents = state_contents("state", encode_state(state, "state"))
        files = [write_checked(filesystem, folder, name, parts_of(each)) for name, each in contents.items()]
        filled = [key for key, tensor in tensors.items() if tensor.size_bytes]
        if filled:
            parts = safetensors_bytes(reader, filled, {"format": "pt"}, as_real=True)
            files.append(write_checked(filesystem, folder, _FILE, parts))
        manifest = Manifest(
            world_size=1,
            files=tuple(files),
            tensors={key: _record(tensor) for key, tensor in tensors.items()},
            aliases={MODEL + name: MODEL + kept for name, kept in weights.aliases.items()},
            stratagem_version=version("stratagem-core"),
            torch_version=torch.__version__,
        )
        write_checked(filesystem, folder, MANIFEST, [manifest.encode()])
        publish(filesystem, folder, target)


def _record(tensor: StoredTensor) -> TensorRecord:
    whole = ChunkRecord(_FILE, (0,) * len(tensor.shape), tensor.shape)
    return TensorRecord(tensor.dtype, tensor.shape, (whole,) if tensor.size_bytes else ())


def is_directory(path: str) -> bool:
    """Return whether `path` is read as one of our own checkpoints: any URL, or a folder with a manifest."""
    return "://" in path or os.path.exists(os.path.join(path, MANIFEST))
