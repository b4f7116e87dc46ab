"""`Averages`: running averages of a model's tensors, in the same shards as the strategy has them."""

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
"""Changes averages in place, given the current values and how many went into the averages before."""


def snapshot(prepared: Prepared) -> dict[str, torch.Tensor]:
    """Copy this rank's part of parameters and buffers, by "model/<name>". Collective under some strategies."""
    return {key: value.detach().clone() for key, value in prepared.model_tensors().items()}


def put_back(prepared: Prepared, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give the model the values of a `snapshot`, as it restores a checkpoint. Collective."""
    prepared.load(_Held(prepared, tensors), {}, model_only=True)


class Averages:
    """Averages of parameters, and of buffers where wanted; other tensors are the latest.

    Args:
        prepared: the run's.
        uses_buffers: whether buffers of floating point are averaged, too.
        tensors: the averages so far; None starts with what the model has.
        count: how many values went into them.
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
        """Average in the values that the model has now; the first ones are taken as they are."""
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
        """The averages by the names that a checkpoint has for them."""
        return {prefix + key: value for key, value in self.tensors.items()}


def read_saved(prepared: Prepared, reader: CheckpointReader, prefix: str) -> dict[str, torch.Tensor] | None:
    """Read tensors that were saved under `prefix`, in this run's shards; None where there are none. Collective."""
    targets = snapshot(prepared)
    if not any(prefix + key in reader.tensors for key in targets):
        return None
    reader.read({prefix + key: tensor for key, tensor in targets.items()})
    return targets


class _Held(CheckpointReader):
    """A snapshot, read as a checkpoint is."""

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
