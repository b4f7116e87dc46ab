"""Write a Hugging Face folder from the memory of all ranks, without a checkpoint in between."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import torch
from stratagem_checkpoint.agreement import on_every_rank, on_first_rank
from stratagem_checkpoint.checksums import CHECKED_BYTES
from stratagem_checkpoint.growing_file import GrowingFile, make_room
from stratagem_checkpoint.saving import AgreedPlan, agree_on_plan
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from stratagem_convert.formats.converting import SHARD_BYTES, in_one_step
from stratagem_convert.formats.own import MODEL
from stratagem_convert.formats.safetensors_files import (
    copy_small_files,
    encode_header,
    shards,
    ties_within,
    write_index,
)
from stratagem_convert.formats.stored import StoredTensor, Weights, raw_bytes

if TYPE_CHECKING:
    from stratagem import Collectives


def export_huggingface(
    collectives: Collectives,
    tensors: Mapping[str, torch.Tensor],
    path: str,
    shard_bytes: int = SHARD_BYTES,
    config: str | None = None,
) -> None:
    """Write a model as a folder that transformers loads. Each rank writes its own shards to their places in the
    files.

    Collective. Nothing is gathered, each rank copies at most one tensor at a time, and each byte is written once.
    When this returns, everything is on the disk. After an error, nothing is left.

    Args:
        collectives: the run's collectives.
        tensors: what `Prepared.model_tensors` returned: this rank's tensors and DTensors by "model/<name>", on any
            device.
        path: a new folder, on a disk that all ranks share.
        shard_bytes: maximum size of a file with several tensors.
        config: a folder whose config.json and tokenizer files are copied.

    Raises:
        CheckpointError: `path` exists, the files can't hold a tensor, or writing failed. Raised on every rank.
    """
    with torch.no_grad():
        plan = agree_on_plan(collectives, {key.removeprefix(MODEL): each for key, each in tensors.items()})
    described = {}
    for name, each in plan.metadata.state_dict_metadata.items():
        each = cast("TensorStorageMetadata", each)
        if name not in plan.aliases:
            described[name] = StoredTensor(each.properties.dtype, tuple(each.size), ())
    weights = Weights(path, "memory", described, plan.aliases)
    files = shards(weights, shard_bytes)
    with ExitStack() as stack:
        folder = on_first_rank(collectives, lambda: stack.enter_context(in_one_step(path, is_folder=True)))

        def begin() -> None:
            copy_small_files(config, folder)
            for file, names in files.items():
                _begin(weights, names, os.path.join(folder, file))
            write_index(weights, files, folder)

        def write() -> None:
            with torch.no_grad():
                for file, names in files.items():
                    _write(plan, collectives.rank, weights, names, os.path.join(folder, file))

        on_first_rank(collectives, begin)
        on_every_rank(collectives, write)
        on_first_rank(collectives, stack.close)


def _begin(weights: Weights, names: Sequence[str], path: str) -> None:
    header, starts = _header(weights, names)
    end = max((start + weights.tensors[name].size_bytes for name, start in starts.items()), default=0)
    with open(path, "xb", buffering=0) as stream:
        make_room(stream.fileno(), max(end, len(header)))
        stream.write(header)


def _header(weights: Weights, names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    tensors = {name: weights.tensors[name] for name in names}
    return encode_header(tensors, {**ties_within(weights, names), "format": "pt"})


def _write(plan: AgreedPlan, rank: int, weights: Weights, names: Sequence[str], path: str) -> None:
    """Write this rank's part of one file."""
    _, starts = _header(weights, names)
    order = {name: number for number, name in enumerate(starts)}
    items = [item for item in plan.plans[rank].items if item.index.fqn in starts]
    items.sort(key=lambda item: (order[item.index.fqn], tuple(item.index.offset or ())))
    descriptor = os.open(path, os.O_WRONLY)
    try:
        file, end = GrowingFile(descriptor, has_room=True), 0
        for item in items:
            assert item.tensor_data is not None
            tensor = plan.planner.resolve_data(item)
            assert isinstance(tensor, torch.Tensor)
            content = raw_bytes(tensor.detach().to("cpu").resolve_conj().resolve_neg())
            stored, chunk = weights.tensors[item.index.fqn], item.tensor_data.chunk
            for begin, count in runs(stored.shape, tuple(chunk.offsets), tuple(chunk.sizes)):
                start = starts[item.index.fqn] + begin * stored.dtype.itemsize
                own, content = (
                    content[: count * stored.dtype.itemsize],
                    content[count * stored.dtype.itemsize :],
                )
                _write_at(descriptor, own, start)
                file.wrote(start + len(own) - end)
                end = start + len(own)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, content: memoryview, start: int) -> None:
    while content:
        count = os.pwrite(descriptor, content[:CHECKED_BYTES], start)
        content, start = content[count:], start + count


def runs(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of a tensor's box in row-major order: index of the first element, and number of elements."""
    if not math.prod(lengths):
        return
    whole = len(shape)
    while whole and lengths[whole - 1] == shape[whole - 1]:
        whole -= 1
    split = max(whole - 1, 0)
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    begin = sum(offset * stride for offset, stride in zip(offsets, strides))
    for index in itertools.product(*(range(length) for length in lengths[:split])):
        yield begin + sum(i * stride for i, stride in zip(index, strides)), math.prod(lengths[split:])
