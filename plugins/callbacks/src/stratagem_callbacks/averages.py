"""`Averages`: running averages of a model's tensors, sharded as the strategy shards the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.local_tensors import local_of

from stratagem import CheckpointReader
from stratagem.errors import CheckpointError
from stratagem.sdk.states import TensorInfo

if TYPE_CHECKING:
    from stratagem import Prepared

Update = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], int], object]
"""Update averages in place: takes the averages, the current values, and how many values were averaged before."""


def snapshot(prepared: Prepared) -> dict[str, torch.Tensor]:
    """Copy this rank's part of parameters and buffers, by "model/<name>". Collective under some strategies."""
    return {key: value.detach().clone() for key, value in prepared.model_tensors().items()}


def restore(prepared: Prepared, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load the values of a `snapshot` into the model, the way a checkpoint is loaded. Collective."""
    prepared.load(_Held(prepared, tensors), {}, model_only=True)


class Averages:
    """Averages of a model's parameters, and of its buffers if wanted. Other tensors have their latest values.

    Args:
        prepared: the strategy's prepared model.
        uses_buffers: whether to average floating-point buffers, too.
        tensors: the averages so far; None starts with the model's current values.
        count: how many values were averaged so far.
    """

    def __init__(
        self,
        prepared: Prepared,
        uses_buffers: bool,
        tensors: Mapping[str, torch.Tensor] | None = None,
        count: int = 0,
    ) -> None:
        self.tensors = dict(snapshot(prepared) if tensors is None else tensors)
        self.count = count
        names = dict(prepared.original_module.named_parameters(remove_duplicate=False))
        self._averaged = {
            key
            for key, value in self.tensors.items()
            if (uses_buffers or key.removeprefix("model/") in names)
            and (value.is_floating_point() or value.is_complex())
        }

    def add(self, prepared: Prepared, update: Update) -> None:
        """Add the model's current values to the averages. The first call copies them."""
        current = prepared.model_tensors()
        groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for key, average in self.tensors.items():
            if key in self._averaged and self.count:
                groups.setdefault((average.device, average.dtype), []).append(key)
            else:
                local_of(average).copy_(local_of(current[key].detach()))
        for keys in groups.values():
            averages = [local_of(self.tensors[key]) for key in keys]
            update(averages, [local_of(current[key].detach()) for key in keys], self.count)
        self.count += 1

    def saved(self, prefix: str) -> dict[str, torch.Tensor]:
        """The averages, with the names that they have in a checkpoint."""
        return {prefix + key: value for key, value in self.tensors.items()}


def read_saved(prepared: Prepared, reader: CheckpointReader, prefix: str) -> dict[str, torch.Tensor] | None:
    """Read the tensors saved under `prefix`, sharded as in this run; None if the checkpoint has none. Collective."""
    targets = snapshot(prepared)
    if not any(prefix + key in reader.tensors for key in targets):
        return None
    reader.read({prefix + key: tensor for key, tensor in targets.items()})
    return targets


class _Held(CheckpointReader):
    """A snapshot that is read like a checkpoint."""

    path = "the averages"
    world_size = 1

    def __init__(self, prepared: Prepared, held: Mapping[str, torch.Tensor]) -> None:
        self._held = held
        self.state: Mapping[str, Any] = {}
        nothing = TensorInfo((), torch.float32)
        self.tensors = {
            key: TensorInfo(tuple(held[key].shape), held[key].dtype) if key in held else nothing
            for key in prepared.model_names(held)
        }

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        return None

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        for key, target in targets.items():
            own, held = local_of(target), local_of(self._held[key])
            if own.shape != held.shape:
                raise CheckpointError(
                    f"{key} has the shape {tuple(own.shape)} on this rank, and its average {tuple(held.shape)}"
                )
            own.copy_(held)
