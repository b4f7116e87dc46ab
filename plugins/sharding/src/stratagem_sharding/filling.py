"""Fill split parameters with rank 0's values, a unit at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from stratagem import ConfigError
from stratagem_sharding.deferred_init import own_modules
from stratagem_sharding.torch_private import own_buffers, own_parameters, own_table, own_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratagem import Precision


__all__ = ["Filler"]


class Place(NamedTuple):
    """Where a tensor is used."""

    module: nn.Module
    name: str


class Source(Protocol):
    """Gives the tensors of modules their values: a `Materializer` or a `Refill`."""

    def fill(self, unit: nn.Module, inner: set[nn.Module]) -> None:
        """Fill the tensors of `unit`, except those of `inner` units, which are filled already. Collective."""


class Filler:
    """Remembers whole tensors before a plan splits them, and fills the shards with their values.

    Create it before the plan is applied. On "meta", a plan creates shards without values; elsewhere it splits the
    values that this rank has. In both cases `fill` uses rank 0's whole values.

    Args:
        root: the whole module.
        source: gives a unit's whole tensors their values, as a `Materializer` does.
        precision: converts what was filled.
    """

    def __init__(self, root: nn.Module, source: Source, precision: Precision) -> None:
        self._source = source
        self._precision = precision
        self._whole = dict(_tensors(root.modules()))
        self._names = {
            Place(module, name): f"{prefix}.{name}" if prefix else name
            for prefix, module in root.named_modules()
            for name in (*own_parameters(module), *own_buffers(module))
        }

    def tie_again(self) -> None:
        """Tie parameters again that the plan has split into one parameter per use.

        Raises:
            ConfigError: the plan split the uses of one tied parameter in different ways.
        """
        by_id: dict[int, list[Place]] = {}
        for place, tensor in self._whole.items():
            by_id.setdefault(id(tensor), []).append(place)
        for places in by_id.values():
            now = [_own(place.module, place.name)[place.name] for place in places]
            if len(places) < 2 or all(each is now[0] for each in now):
                continue
            layouts = [_layout(each) for each in now]
            for place, layout in zip(places, layouts):
                if layout != layouts[0]:
                    raise ConfigError(
                        f"{self._name(places[0])!r} and {self._name(place)!r} are one parameter, and the plan splits "
                        f"it as {layouts[0]} in one place and as {layout} in the other: give both layers styles that "
                        'split it alike, as "rowwise" for an embedding and "colwise_gathered" or "logits" for the '
                        "layer that shares its weight"
                    )
            for place in places:
                _own(place.module, place.name)[place.name] = now[0]

    def fill(self, unit: nn.Module, inner: set[nn.Module]) -> None:
        """Fill and convert the tensors of `unit`, except those of `inner` units, which are filled. Collective."""
        modules = list(own_modules(unit, inner))
        layouts = {place: tensor for place, tensor in _tensors(modules) if isinstance(tensor, DTensor)}
        for place in layouts:
            _own(*place)[place.name] = self._whole[place]
        self._source.fill(unit, inner)
        self._precision.convert_module(unit)
        made: dict[int, Any] = {}
        for place, parts in layouts.items():
            whole: Any = _own(*place)[place.name]
            if id(parts) not in made:
                made[id(parts)] = _alike(parts, whole, self._whole[place].requires_grad)
            _own(*place)[place.name] = made[id(parts)]
        for place in [place for place, _ in _tensors(modules)]:
            self._whole.pop(place, None)

    def _name(self, place: Place) -> str:
        return self._names[place].removeprefix("module.")


def _alike(parts: Any, whole: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    made = distribute_tensor(whole.detach(), parts.device_mesh, parts.placements, src_data_rank=None)
    return nn.Parameter(made, requires_grad=requires_grad) if isinstance(whole, nn.Parameter) else made


def _layout(tensor: Any) -> str:
    return str(tuple(tensor.placements)) if isinstance(tensor, DTensor) else "whole"


def _own(module: nn.Module, name: str) -> dict[str, Any]:
    return own_table(module, name)


def _tensors(modules: Any) -> Iterator[tuple[Place, torch.Tensor]]:
    for module in modules:
        for name, tensor in own_tensors(module):
            yield Place(module, name), tensor
