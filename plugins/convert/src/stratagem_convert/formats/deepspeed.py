"""Folders of DeepSpeed. The full-precision weights are assembled from ZeRO's partitions, without the engine."""

from __future__ import annotations

import math
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from stratagem_checkpoint.regular_files import require_regular

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import Chunk, StoredTensor, Weights
from stratagem_convert.formats.structure import state_dict_of, write_structure
from stratagem_convert.formats.torch_files import Inert, collect, load_structure, stored_at

LATEST = "latest"
_TAG = "global_step{}"
_MODEL = "mp_rank_00_model_states.pt"
_RANK = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_(model|optim)_states\.pt")


def folder_of(path: str) -> str | None:
    """Return the folder that `latest` names, or else `path` itself if it has states; None otherwise."""
    latest = os.path.join(path, LATEST)
    require_regular(latest)
    try:
        with open(latest, encoding="utf-8") as stream:
            tag = stream.read(1000).strip()
    except (OSError, UnicodeDecodeError):
        tag = ""
    folder = os.path.join(path, tag) if tag and os.path.basename(tag) == tag else path
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    return folder if any(name.endswith("_model_states.pt") for name in names) else None


def read_folder(path: str) -> Weights:
    """Open a DeepSpeed folder of any ZeRO stage. Parameters have the values and precision of the optimizer's copies.

    Objects in its files that aren't tensors are left out, and never constructed.

    Raises:
        CheckpointError: it is incomplete, or the model itself was split.
    """
    folder = folder_of(path)
    if folder is None:
        raise CheckpointError(f"{path} is not a DeepSpeed folder: it has no file *_model_states.pt")
    names = sorted(os.listdir(folder))
    split = [name for name in names if re.search(r"mp_rank_(?!00)\d\d|^layer_\d", name)]
    if split:
        raise CheckpointError(
            f"{folder} has a model that was split ({split[0]}), which can't be joined without its code: "
            "join it with DeepSpeed's ds_to_universal"
        )
    ranked = {
        (match[2], int(match[1])): os.path.join(folder, match[0])
        for match in map(_RANK.fullmatch, names)
        if match
    }
    optim = [ranked[each] for each in sorted(ranked) if each[0] == "optim"]
    models = [ranked[each] for each in sorted(ranked) if each[0] == "model"]
    if not models:
        models = [os.path.join(folder, _MODEL)]
    states = [_load(file) for file in models]
    state = states[0]
    values: Mapping[str, Any] = _entry(state, "module", models[0]) or {}
    module, ties = collect(
        {name: each for name, each in values.items() if isinstance(each, torch.Tensor)}, models[0]
    )
    facts = {
        "global_step": str(state.get("global_steps", 0)),
        "deepspeed": str(state.get("ds_version", "unknown")),
    }
    if not optim:
        return Weights(path, "deepspeed", module, ties, facts=facts)
    parts = [_entry(_load(file), "optimizer_state_dict", file) for file in optim]
    stage, count = _number(parts[0].get("zero_stage", 0)), parts[0].get("partition_count", len(optim))
    if (max(count) if isinstance(count, list) else count) != len(optim):
        raise CheckpointError(
            f"{folder} is incomplete: it was written by {count} ranks, but has the optimizer states of {len(optim)}"
        )
    tensors: dict[str, StoredTensor] = {}
    for name in state.get("buffer_names", ()):
        if ties.get(name, name) in module:
            tensors[name] = module[ties.get(name, name)]
    of_stage = _stage_3 if stage == 3 else _stages_1_and_2
    try:
        tensors.update(_frozen(states, models))
        tensors.update(of_stage(_entry(state, "param_shapes", models[0]), parts, optim))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{folder} can't be read: its states aren't in the form of DeepSpeed 0.10 to 0.19 "
            f"({type(error).__name__}: {error})"
        ) from error
    facts["zero_stage"] = str(stage)
    left_out = ["the optimizer's states"]
    return Weights(path, "deepspeed", tensors, _tied(state, tensors), left_out, facts)


def _load(file: str) -> Any:
    content = load_structure(file, file, ignore_objects=True)
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{file} has a {type(content).__name__} instead of DeepSpeed's states; use another"
        )
    return content


def _number(value: Any) -> int:
    """Return the value of an enum's member, which was loaded as an `Inert`."""
    value = value.arguments[0] if isinstance(value, Inert) and value.arguments else value
    return value if isinstance(value, int) else 0


def _entry(state: Mapping[str, Any], key: str, file: str) -> Any:
    if key not in state:
        raise CheckpointError(f"{file} has no {key!r}, unlike DeepSpeed's states; use another")
    return state[key]


def _stored(tensor: torch.Tensor, file: str) -> StoredTensor:
    stored = stored_at(tensor, file)
    if stored is None:
        raise CheckpointError(f"{file} was written by torch before 1.6: save it again with this torch")
    return stored


def _tied(state: Mapping[str, Any], tensors: Mapping[str, object]) -> dict[str, str]:
    shared = state.get("shared_params") or {}
    return {name: kept for name, kept in shared.items() if kept in tensors and name not in tensors}


def _frozen(states: Sequence[Mapping[str, Any]], files: Sequence[str]) -> dict[str, StoredTensor]:
    shapes = states[0].get("frozen_param_shapes") or {}
    found = {}
    for name, shape in shapes.items():
        fragments = [
            _stored(state["frozen_param_fragments"][name], file) for state, file in zip(states, files)
        ]
        found[name] = _flat(name, fragments[0].dtype, shape, fragments)
    return found


def _stages_1_and_2(
    groups: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]], files: Sequence[str]
) -> dict[str, StoredTensor]:
    found = {}
    paddings = parts[0].get("param_alignment_paddings")
    for number, shapes in enumerate(groups):
        partitions = [
            _stored(part["single_partition_of_fp32_groups"][number], file) for part, file in zip(parts, files)
        ]
        offset = 0
        for index, (name, shape) in enumerate(shapes.items()):
            found[name] = _flat(name, partitions[0].dtype, shape, partitions, offset)
            offset += math.prod(shape) + (paddings[number][index] if paddings else 0)
    return found


def _stage_3(
    groups: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]], files: Sequence[str]
) -> dict[str, StoredTensor]:
    shapes = {name: shape for group in groups for name, shape in group.items()}
    of_ranks = [
        [_stored(flat, file) for flat in part["fp32_flat_groups"]] for part, file in zip(parts, files)
    ]
    found = {}
    offset = 0
    for name, shape in shapes.items():
        length = -(-math.prod(shape) // len(parts))
        own: list[StoredTensor] = []
        for flats in of_ranks:
            own += _slices(flats, offset, length)
        found[name] = _flat(name, of_ranks[0][0].dtype, shape, own)
        offset += length
    return found


def _slices(flats: Sequence[StoredTensor], begin: int, length: int) -> Iterator[StoredTensor]:
    """Yield the slices of consecutive 1-dim tensors that cover `length` elements from `begin` on."""
    base = 0
    for flat in flats:
        first, last = max(begin, base), min(begin + length, base + flat.shape[0])
        if first < last:
            start = flat.chunks[0].start + (first - base) * flat.dtype.itemsize
            chunk = Chunk(flat.chunks[0].file, start, (0,), (last - first,))
            yield StoredTensor(flat.dtype, (last - first,), (chunk,))
        base += flat.shape[0]


def _flat(
    name: str, dtype: torch.dtype, shape: Sequence[int], flats: Sequence[StoredTensor], begin: int = 0
) -> StoredTensor:
    """Return the tensor whose elements are consecutive in `flats`, from `begin` on."""
    wanted = math.prod(shape)
    joined = [StoredTensor(each.dtype, (math.prod(each.shape),), each.chunks) for each in flats]
    chunks, at = [], 0
    for part in _slices(joined, begin, wanted):
        chunks.append(part.chunks[0]._replace(offsets=(at,)))
        at += part.shape[0]
    if at != wanted:
        raise CheckpointError(
            f"{flats[0].chunks[0].file} is incomplete: it has {at} of the {wanted} values of {name!r}"
        )
    return StoredTensor(dtype, tuple(shape), tuple(chunks), flat=True)


def write_folder(weights: Weights, path: str) -> None:
    """Write a folder whose weights the engine can load with `load_checkpoint(path, load_module_only=True)`."""
    step = weights.facts.get("global_step", "0")
    folder = os.path.join(path, _TAG.format(step))
    os.mkdir(folder)
    around = {
        "dp_world_size": 1,
        "mp_world_size": 1,
        "global_steps": int(step),
        "global_samples": 0,
        "skipped_steps": 0,
        "ds_version": "0.10.0",
        "optimizer": None,
        "lr_scheduler": None,
        "sparse_tensor_module_names": [],
        "buffer_names": [],
        "param_shapes": [OrderedDict((name, tensor.shape) for name, tensor in weights.tensors.items())],
        "frozen_param_shapes": None,
        "frozen_param_fragments": None,
        "shared_params": dict(weights.aliases),
    }
    content = {**around, "module": state_dict_of(weights)}
    write_structure(content, weights, os.path.join(folder, _MODEL))
    with open(os.path.join(path, LATEST), "x", encoding="utf-8") as stream:
        stream.write(os.path.basename(folder))
