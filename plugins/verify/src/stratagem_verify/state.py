"""The state of a module: full weights, buffers, and values outside its state dict. Also joins batches."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.batch_size import batch_size_of
from torch import Tensor, nn

from stratagem.sdk.tensors import map_tensors

if TYPE_CHECKING:
    from stratagem_trainer.trainer import Trainer

_OWN = {*vars(nn.Module()), "_trainer", "replica_device", "automatic_optimization"}
_PLAIN = (bool, int, float, complex, str, type(None))


class JoinError(Exception):
    """Batches of several ranks can't be joined. The message says why."""


# Weights ------------------------------------------------------------------------------------------------


def load_weights(trainer: Trainer, path: str) -> None:
    """Load the weights of a checkpoint into the module. Collective."""
    reader = trainer.runtime.session.checkpointer.open(path)
    trainer.prepared.load(reader, dict(reader.state.get("prepared", {})), model_only=True)


def own_weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return the parameters and buffers that this rank has in full, or can gather. Collective."""
    tensors: Mapping[str, Any] = trainer.prepared.model_tensors()
    gathered = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in tensors.items()
    }
    return {name.removeprefix("model/"): value.detach().cpu().clone() for name, value in gathered.items()}


# Other state ----------------------------------------------------------------------------------------------


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_WITH_STATISTICS = (*_BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers that this rank has in full, also of those outside the state dict."""
    return {
        name: buffer.detach().cpu().clone()
        for name, buffer in module.named_buffers()
        if not hasattr(buffer, "full_tensor")
    }


def buffers_of_normalization(module: nn.Module) -> set[str]:
    """Return the names of buffers that belong to running statistics of normalization layers."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if isinstance(layer, _WITH_STATISTICS)
        for name, _ in layer.named_buffers(recurse=False)
    }


def separate_batch_norms(module: nn.Module) -> list[str]:
    """Return the names of layers that normalize with their rank's batch only."""
    return [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, _BATCH_NORMS) and not isinstance(layer, nn.SyncBatchNorm) and layer.training
    ]


def outside_state(module: nn.Module) -> dict[str, Any]:
    """Return copies of a module's numbers, texts and tensors that aren't in its state dict, by name."""
    saved = module.state_dict().keys()
    found: dict[str, Any] = {
        name: buffer.detach().clone() for name, buffer in module.named_buffers() if name not in saved
    }
    for prefix, layer in module.named_modules():
        start = f"{prefix}." if prefix else ""
        for name, value in vars(layer).items():
            if name not in _OWN and _is_plain(value):
                found[start + name] = copy.deepcopy(_detached(value))
    return found


def rank_state(module: nn.Module) -> dict[str, Any]:
    """Return copies of a rank's module state, without parameters."""
    buffers = {
        name: buffer.detach().clone()
        for name, buffer in module.named_buffers()
        if not hasattr(buffer, "full_tensor")
    }
    return {**outside_state(module), **buffers}


def restore_rank_state(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Restore what `rank_state` returned."""
    for name, value in state.items():
        prefix, _, attribute = name.rpartition(".")
        owner = module.get_submodule(prefix)
        buffer = dict(owner.named_buffers(recurse=False)).get(attribute)
        if buffer is not None and buffer.shape == value.shape:
            with torch.no_grad():
                buffer.copy_(value)
        else:
            setattr(owner, attribute, copy.deepcopy(value))


def values_of(module: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """Return the current values of names that `outside_state` returned. They may be attributes of the class."""
    found = {}
    for name in names:
        prefix, _, attribute = name.rpartition(".")
        value = getattr(module.get_submodule(prefix), attribute, None)
        found[name] = copy.deepcopy(_detached(value)) if _is_plain(value) else None
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names under which two states differ."""
    return [name for name, value in one.items() if name in other and digest(value) != digest(other[name])]


def shown(value: Any) -> str:
    """Return a short form of a value, for a message."""
    if isinstance(value, Tensor):
        return f"{value.item():.6g}" if value.numel() == 1 else f"a tensor of shape {tuple(value.shape)}"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, deque, set)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    is_tensor = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    return isinstance(value, _PLAIN) or is_tensor


def _detached(value: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach(), value)


# Values and batches ---------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """Return a digest of all tensors and other values in `value`. Equal values have equal digests."""
    made = hashlib.sha256()
    for part in _leaves(value):
        made.update(part)
    return made.hexdigest()


def _leaves(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        dense = value.detach().cpu()
        yield f"{dense.dtype}{tuple(dense.shape)}".encode()
        yield dense.contiguous().flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    elif isinstance(value, Mapping):
        for key in value:
            yield repr(key).encode()
            yield from _leaves(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield pickle.dumps(value)


def joined(batches: Sequence[Any]) -> Any:
    """Return a batch of all samples of several batches, in order.

    Raises:
        JoinError: they can't be concatenated along the first dim.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    sizes = [batch_size_of(batch) for batch in batches]
    whole = _joined(batches)
    if None in sizes or batch_size_of(whole) != sum(size for size in sizes if size is not None):
        raise JoinError("the number of samples in a batch isn't known")
    return whole


def _joined(batches: Sequence[Any]) -> Any:
    first = batches[0]
    if isinstance(first, Tensor):
        if not first.dim():
            if all(torch.equal(first, other) for other in batches):
                return first
            raise JoinError("a batch has a number that differs between ranks")
        if any(other.shape[1:] != first.shape[1:] for other in batches):
            raise JoinError("the ranks' batches have different lengths, as if each was padded separately")
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        made = {key: _joined([batch[key] for batch in batches]) for key in first}
        return made if type(first) is dict else type(first)(made)  # type: ignore[call-arg]  # a mapping's class takes a mapping
    if isinstance(first, (list, tuple)):
        if first and all(isinstance(item, (*_PLAIN, bytes)) for item in first):
            return type(first)([item for batch in batches for item in batch])
        if any(len(other) != len(first) for other in batches):
            raise JoinError("the ranks' batches have different numbers of items")
        items = [_joined(column) for column in zip(*batches)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if all(digest(first) == digest(other) for other in batches):
        return first
    raise JoinError(f"a {type(first).__name__} in the batches differs between ranks")
