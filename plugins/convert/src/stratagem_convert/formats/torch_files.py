"""Files of `torch.save`: state dicts, and Lightning's `.ckpt`. Tensors are read from their positions in the file."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from stratagem_checkpoint.regular_files import require_regular

from stratagem.errors import CheckpointError
from stratagem_convert.formats.lightning import LOOPS, VERSION, epoch_and_batch
from stratagem_convert.formats.stored import Chunk, StoredTensor, Weights
from stratagem_convert.formats.structure import map_tensors, state_dict_of, write_structure
from stratagem_convert.formats.torch_optimizers import optimizer_in_order, optimizer_of_torch
from stratagem_convert.formats.training import (
    BATCH,
    EPOCH,
    NAMES,
    OPTIMIZERS,
    SCHEDULERS,
    STEP,
    WEIGHTS,
    Training,
)
from stratagem_convert.torch_private import checkpoint_offset


class Inert:
    """Replaces an object of a class that isn't loaded. It keeps the object's arguments, and does nothing."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        pass


def load_structure(file: str | BinaryIO, shown: str, ignore_objects: bool = False) -> Any:
    """Load what `torch.save` wrote. Tensors are on the meta device, with their positions in the file.

    Runs no code of the file, because it uses torch's `weights_only`.

    Args:
        file: a path, or an open, seekable file.
        shown: name in error messages.
        ignore_objects: load objects of classes other than tensors and containers as `Inert`; only for a path.

    Raises:
        CheckpointError: it isn't such a file, or has other objects.
    """
    known: list[Any] = []
    if isinstance(file, str):
        require_regular(file)
    try:
        if ignore_objects and isinstance(file, str):
            foreign = torch.serialization.get_unsafe_globals_in_checkpoint(file)
            known = [(Inert, name) for name in foreign]
        with torch.serialization.safe_globals(known), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a warning of the pickle protocol would come before a clearer error
            return torch.load(file, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{shown} has other objects than tensors, which aren't loaded because that could run code: "
            f"{why_refused(error)}; save only its state dict with the program that made it"
        ) from error
    except Exception as error:  # a damaged file may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(
            f"{shown} is not a file of torch.save, or is damaged ({reason}); use another"
        ) from error


def why_refused(error: object) -> str:
    """Return a short reason from torch's error about a pickle that `weights_only` doesn't load."""
    named = re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error))
    return f"it names {named[1]}" if named else "its pickle has another instruction than tensors need"


def stored_at(tensor: torch.Tensor, file: str, base: int = 0) -> StoredTensor | None:
    """Return the position of a tensor of `load_structure`, as one chunk; None in files of torch before 1.6.

    Args:
        tensor: a tensor on the meta device.
        file: path of its file.
        base: position in the file at which torch.save began.
    """
    shape = tuple(tensor.shape)
    if not tensor.numel():
        return StoredTensor(tensor.dtype, shape, (Chunk(file, 0, (0,) * len(shape), shape),))
    offset = checkpoint_offset(tensor)
    if offset is None:
        return None
    start = base + offset + int(tensor.storage_offset()) * tensor.dtype.itemsize
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return StoredTensor(tensor.dtype, shape, (Chunk(file, start, (0,) * len(shape), shape, strides),))


def read_state_dict(path: str, key: str | None = None, in_order: bool = False) -> Weights:
    """Open a file of torch.save that has a state dict, or a Lightning checkpoint.

    Args:
        path: path of the file.
        key: entry that has the state dict; dots lead to nested entries.
        in_order: whether its optimizer, which has no parameter names, has the parameters in the state dict's order.

    Raises:
        CheckpointError: something in the state dict isn't a tensor, or there is no state dict.
    """
    content = load_structure(path, path)
    if not isinstance(content, Mapping) or not (VERSION in content or _has_training(content)):
        tensors, aliases = collect(_entry(content, key, path), path)
        return Weights(path, "torch", tensors, aliases)
    key = WEIGHTS if key is None else key
    tensors, aliases = collect(_entry(content, key, path), path)
    facts = {fact: str(content[fact]) for fact in (EPOCH, STEP) if fact in content}
    training = _training(content, path, tensors if in_order else None)
    taken = {key, VERSION, *facts}
    if training is not None:
        taken |= {BATCH, OPTIMIZERS, SCHEDULERS, NAMES, *({LOOPS} if VERSION in content else ())}
    others = sorted(str(each) for each in content if each not in taken and content[each] not in ({}, []))
    left_out = [f"the run's {', '.join(others)}"] if others else []
    if training is None and content.get(OPTIMIZERS):
        left_out.append(
            "the optimizers' states don't name their parameters: --in-order, if they are in the model's order"
        )
    name = "lightning" if VERSION in content else "torch"
    return Weights(path, name, tensors, aliases, left_out, facts, training=training)


def _entry(content: Any, key: str | None, path: str) -> Any:
    for part in key.split(".") if key else ():
        if not isinstance(content, Mapping) or part not in content:
            raise CheckpointError(f"{path} has no {key!r}: it has {_entries(content)}")
        content = content[part]
    return content


def _has_training(content: Mapping[Any, Any]) -> bool:
    return OPTIMIZERS in content and WEIGHTS in content


def _training(
    content: Mapping[Any, Any], path: str, in_order: Mapping[str, StoredTensor] | None
) -> Training | None:
    """Return the training that was saved with the weights; None if there is none, or it has no parameter names.

    `in_order` has the parameters for an optimizer without names.
    """
    states, names = content.get(OPTIMIZERS), content.get(NAMES)
    if not isinstance(states, list) or not states:
        return None
    if names is not None and (not isinstance(names, list) or len(names) != len(states)):
        raise CheckpointError(
            f"{path} is damaged: it doesn't name the parameters of {len(states)} optimizers"
        )

    def stored(shown: str, value: Any) -> Any:
        return map_tensors(value, lambda tensor: _located(shown, tensor, path))

    optimizers = [
        optimizer_of_torch(state, names and names[index], stored, path) for index, state in enumerate(states)
    ]
    if in_order is not None and None in optimizers:
        optimizers = [optimizer_in_order(states, in_order, stored, path)]
    if any(each is None for each in optimizers):
        return None
    schedulers = stored(SCHEDULERS, content.get(SCHEDULERS, []))
    counts = [content.get(each, 0) for each in (EPOCH, BATCH, STEP)]
    if not isinstance(schedulers, list) or not all(type(each) is int and each >= 0 for each in counts):
        raise CheckpointError(f"{path} is damaged: its {EPOCH}, {BATCH}, {STEP} or {SCHEDULERS} is invalid")
    if LOOPS in content and not content.get(BATCH):
        counts[:2] = epoch_and_batch(content[LOOPS], counts[0])
    return Training([each for each in optimizers if each is not None], schedulers, *counts)


def _located(name: str, tensor: torch.Tensor, path: str) -> StoredTensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(f"{name!r} in {path} is not a plain tensor: convert with --weights-only")
    stored = stored_at(tensor, path)
    if stored is None:
        raise CheckpointError(
            f"{path} was written by torch before 1.6: load it, and save it again with this torch"
        )
    return stored


def collect(content: Any, path: str) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a state dict that `load_structure` returned, and their ties.

    Raises:
        CheckpointError: it has something other than tensors.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path} has a {type(content).__name__} instead of a state dict; name the entry with --key"
        )
    tensors: dict[str, StoredTensor] = {}
    aliases: dict[str, str] = {}
    first: dict[StoredTensor, str] = {}
    for name, value in content.items():
        if (
            type(value) not in (torch.Tensor, torch.nn.Parameter)
            or value.layout != torch.strided
            or value.is_quantized
        ):
            raise CheckpointError(
                f"{str(name)[:80]!r} in {path} is a {type(value).__name__}, not a plain tensor: name the entry with "
                f"the weights with --key (it has {_entries(content)})"
            )
        stored = _located(str(name), value, path)
        if value.numel() and stored in first:
            aliases[str(name)] = first[stored]
        else:
            first[stored] = str(name)
            tensors[str(name)] = stored
    return tensors, aliases


def _entries(content: Any) -> str:
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__}"
    names = [repr(name) for name in content]
    return (
        ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        if names
        else "nothing"
    )


def write_state_dict(weights: Weights, path: str) -> None:
    """Write a state dict in the format of torch.save. Tied tensors share their memory after loading.

    With a training, the state dict is one of several entries; see `Training.as_torch`.
    """
    state_dict = state_dict_of(weights)
    training = weights.training
    write_structure(
        state_dict if training is None else {WEIGHTS: state_dict, **training.as_torch()}, weights, path
    )
