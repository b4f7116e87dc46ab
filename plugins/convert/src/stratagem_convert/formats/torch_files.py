"""Files of `torch.save`: state dicts, and Lightning's `.ckpt`; tensors are read where they lie."""

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
    """What stands for an object of a class that isn't made: it keeps its arguments and does nothing."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        pass


def load_structure(file: str | BinaryIO, shown: str, ignore_objects: bool = False) -> Any:
    """Load what `torch.save` wrote, with tensors on the meta device that know where they lie in the file.

    Runs no code of the file: torch's `weights_only`.

    Args:
        file: path, or open and seekable.
        shown: how errors name it.
        ignore_objects: whether objects of other classes than tensors and containers become `Inert`; only of a path.

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
            warnings.simplefilter("ignore")  # of another pickle protocol, before the error that says more
            return torch.load(file, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{shown} has more than tensors in it, which isn't loaded because that could run code: "
            f"{why_refused(error)}; save its state dict alone with the program that made it"
        ) from error
    except Exception as error:  # whatever a damaged file raises
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(
            f"{shown} is no file of torch.save, or is damaged ({reason}); use another"
        ) from error


def why_refused(error: object) -> str:
    """What torch's error, in some lines, comes to: that of a pickle with more in it than `weights_only` loads."""
    named = re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error))
    return f"it names {named[1]}" if named else "its pickle has another instruction than tensors need"


def stored_at(tensor: torch.Tensor, file: str, base: int = 0) -> StoredTensor | None:
    """Where a tensor of `load_structure` lies, as one chunk; None where its file is of before torch 1.6.

    Args:
        tensor: plain.
        file: its path.
        base: where in the file torch.save began.
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
        path: of the file.
        key: of the entry that is the state dict; dots go further down.
        in_order: whether its optimizer, which doesn't name its parameters, has them in the state dict's order.

    Raises:
        CheckpointError: something in the state dict is no tensor, or there is none.
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
            "the optimizers' states don't say whose they are: --in-order, if they are in the model's order"
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
    """The state of the training, saved with the weights; None if there is none, or its parameters have no names.

    `in_order` is whose they are then.
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
        raise CheckpointError(f"{path} is damaged: its {EPOCH}, {BATCH}, {STEP} or {SCHEDULERS} isn't one")
    if LOOPS in content and not content.get(BATCH):
        counts[:2] = epoch_and_batch(content[LOOPS], counts[0])
    return Training([each for each in optimizers if each is not None], schedulers, *counts)


def _located(name: str, tensor: torch.Tensor, path: str) -> StoredTensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(f"{name!r} in {path} is no plain tensor: convert with --weights-only")
    stored = stored_at(tensor, path)
    if stored is None:
        raise CheckpointError(
            f"{path} was written by torch before 1.6: load it, and save it again with this torch"
        )
    return stored


def collect(content: Any, path: str) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a state dict as `load_structure` returns it, and which are tied.

    Raises:
        CheckpointError: something else is in it.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path} has a {type(content).__name__} where a state dict is to be; name it with --key"
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
                f"{str(name)[:80]!r} in {path} is a {type(value).__name__} and no plain tensor: name the entry with "
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
    """Write a state dict as torch.save does; tied tensors share their memory when it is loaded.

    Where the weights come with a training, the state dict is one entry of several; see `Training.as_torch`.
    """
    state_dict = state_dict_of(weights)
    training = weights.training
    write_structure(
        state_dict if training is None else {WEIGHTS: state_dict, **training.as_torch()}, weights, path
    )
