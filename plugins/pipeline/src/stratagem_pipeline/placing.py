"""Gives each rank the tensors of its own stages only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from stratagem_sharding.torch_private import own_table, own_tensors
from torch import nn

from stratagem import ConfigError

if TYPE_CHECKING:
    from stratagem_sharding.deferred_init import Construction

    from stratagem import Collectives

Place = tuple[nn.Module, str]
"""A module, and the name of a parameter or buffer in it."""


class Placement:
    """Places the tensors of a module: knows where each is registered, and which ranks of a copy hold it.

    The module keeps its structure and names on every rank. Tensors that a rank doesn't hold are on "meta".

    Args:
        root: the whole module.
        pipe: the ranks of this copy.
        collectives: all ranks.
        construction: the recorded values of tensors on "meta", if any.
        device: of the tensors that this rank holds.

    Raises:
        ConfigError: ranks built different modules, or no rank has the values of a tensor.
    """

    def __init__(
        self,
        root: nn.Module,
        pipe: Collectives,
        collectives: Collectives,
        construction: Construction | None,
        device: torch.device,
    ) -> None:
        self._pipe, self._collectives, self._construction = pipe, collectives, construction
        self._device = device
        self._places: dict[str, list[Place]] = {}
        self._holders: dict[str, tuple[int, ...]] = {}
        self._done: dict[str, tuple[int, ...]] = {}
        first_name: dict[int, str] = {}
        for path, module in root.named_modules():
            for name, tensor in own_tensors(module):
                full = first_name.setdefault(id(tensor), f"{path}.{name}" if path else name)
                self._places.setdefault(full, []).append((module, name))
        self._sources = self._agree()

    def assign(self, stages: Sequence[Iterable[nn.Module]], ranks: Sequence[int]) -> None:
        """Set which ranks hold which tensors, by the modules and rank of each stage. All ranks hold other tensors."""
        of_tensor: dict[int, set[int]] = {}
        for modules, rank in zip(stages, ranks):
            for tensor in _tensors_in(modules):
                of_tensor.setdefault(id(tensor), set()).add(rank)
        everyone = set(range(self._pipe.world_size))
        for name in self._places:
            self._holders[name] = tuple(sorted(of_tensor.get(id(self._tensor(name)), everyone)))

    def fill(self, modules: Iterable[nn.Module] | None = None) -> None:
        """Fill the tensors of `modules`, or all remaining ones, on the ranks that hold them. Collective."""
        wanted = None if modules is None else {id(tensor) for tensor in _tensors_in(modules)}
        for name in list(self._holders):
            if wanted is None or id(self._tensor(name)) in wanted:
                self._fill(name)
                self._done[name] = self._holders.pop(name)

    def holders(self) -> dict[int, tuple[int, ...]]:
        """Return, for all filled tensors, id(tensor) → the ranks of a copy that hold it."""
        return {id(self._tensor(name)): ranks for name, ranks in self._done.items()}

    @contextmanager
    def materialized(self, layer: nn.Module) -> Iterator[None]:
        """While active, `layer` has its tensors on this rank. This rank must know their values."""
        before = []
        for module in layer.modules():
            before += [(own_table(module, name), name, tensor) for name, tensor in own_tensors(module)]
        made: dict[int, torch.Tensor] = {}
        for own, name, tensor in before:
            if id(tensor) not in made:
                made[id(tensor)] = _like(self._value(tensor).to(self._device), tensor)
            own[name] = made[id(tensor)]
        try:
            yield
        finally:
            for own, name, tensor in before:
                own[name] = tensor

    # Inside -----------------------------------------------------------------------------------------

    def _tensor(self, name: str) -> torch.Tensor:
        module, own = self._places[name][0]
        tensor: torch.Tensor | None = own_table(module, own)[own]
        assert tensor is not None
        return tensor

    def _fill(self, name: str) -> None:
        tensor, source = self._tensor(name), self._sources[name]
        is_held = self._pipe.rank in self._holders[name]
        value: torch.Tensor | None = None
        if self._collectives.rank == source:
            value = self._value(tensor).to(self._device)
        elif self._collectives.world_size > 1:
            value = torch.empty_like(tensor, device=self._device, memory_format=torch.contiguous_format)
        assert value is not None
        if self._collectives.world_size > 1:
            value = value.contiguous()
            dist.broadcast(value, source)
        if not is_held:
            self._register(name, _like(torch.empty_like(tensor, device="meta"), tensor))
        elif tensor.is_meta:
            self._register(name, _like(value, tensor))
        elif tensor.device == value.device:
            with torch.no_grad():
                tensor.copy_(value)
        else:
            tensor.data = value

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's values. This rank must know them."""
        if not tensor.is_meta:
            return tensor.detach()
        assert self._construction is not None
        return self._construction.materialize([tensor])[0]

    def _register(self, name: str, tensor: torch.Tensor) -> None:
        for module, own in self._places[name]:
            own_table(module, own)[own] = tensor

    def _agree(self) -> dict[str, int]:
        """Compare the ranks' modules; return for each tensor the first rank that knows its values."""
        shapes = [(n, tuple(self._tensor(n).shape), str(self._tensor(n).dtype)) for n in self._places]
        unknown = {name for name in self._places if not self._knows(self._tensor(name))}
        digest = sha256(repr(shapes).encode()).hexdigest()
        gathered = self._collectives.gather_objects((digest, unknown))
        for rank, (theirs, _) in enumerate(gathered):
            if theirs != gathered[0][0]:
                raise ConfigError(
                    f"rank {rank} built another module than rank 0, with other names, shapes or dtypes: build the "
                    "same one on every rank"
                )
        sources: dict[str, int] = {}
        for name in self._places:
            source = next((rank for rank, (_, lacks) in enumerate(gathered) if name not in lacks), None)
            if source is None:
                raise ConfigError(
                    f"{name!r} is on the meta device and nothing gives its values: make layers in configure_model, "
                    "which records how they are initialised"
                )
            sources[name] = source
        return sources

    def _knows(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_meta or (self._construction is not None and self._construction.knows(tensor))


def _tensors_in(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()


def _like(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, nn.Parameter):
        return value
    return nn.Parameter(value.detach(), requires_grad=tensor.requires_grad)
