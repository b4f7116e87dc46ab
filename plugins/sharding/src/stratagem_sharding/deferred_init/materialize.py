"""Materialize the tensors of one unit before it is sharded, with the same values on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from stratagem.errors import ConfigError
from stratagem_sharding.torch_private import own_table, own_tensors

if TYPE_CHECKING:
    from stratagem import Collectives
    from stratagem_sharding.deferred_init.deferred import Construction


class Materializer:
    """Materializes modules on "meta", and makes all ranks start from rank 0's values.

    Args:
        root: the whole module; it is read, not changed.
        construction: the recorded construction of its tensors on "meta"; None if none was recorded.
        param_init_fn: called with each module that has tensors on "meta", inner ones first. It moves the module's own
            tensors to the CPU or the device, and fills them.
        broadcast: whether to send rank 0's values to all ranks; if False, values that differ between ranks are an
            error.
        collectives: of all ranks.

    Raises:
        ConfigError: ranks built different modules, or a tensor on "meta" has no source of its values.
    """

    def __init__(
        self,
        root: nn.Module,
        construction: Construction | None,
        param_init_fn: Callable[[nn.Module], Any] | None,
        broadcast: bool,
        collectives: Collectives,
    ) -> None:
        self.root = root
        self._construction, self._fill = construction, param_init_fn
        self._broadcast, self._collectives = broadcast, collectives
        self._received_only = self._agree(root)

    def fill(self, unit: nn.Module, inner: set[nn.Module]) -> None:
        """Materialize the tensors of `unit`, except those of `inner` units, which are done already. Collective."""
        modules = list(own_modules(unit, inner))
        if self._fill is None:
            self._make(modules)
        else:
            self._fill_by_hand(modules, self._fill)
        self._check_filled(modules)
        if self._collectives.world_size > 1:
            tensors = list({id(tensor): tensor for _, _, tensor in _tensors_of(modules)}.values())
            if self._broadcast:
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), 0)
            else:
                self._refuse_differing(unit, tensors)

    def _make(self, modules: list[nn.Module]) -> None:
        # A tensor that is registered twice is materialized once; both registrations are in this unit.
        missing = list({id(t): t for _, _, t in _tensors_of(modules) if t.is_meta}.values())
        if self._construction is not None and not self._received_only:
            made = self._construction.materialize(missing)
        else:
            made = [torch.empty_like(tensor, device="cpu") for tensor in missing]
        by_id = {id(tensor): _alike(real, tensor) for tensor, real in zip(missing, made)}
        for module, name, tensor in _tensors_of(modules):
            if tensor.is_meta:
                own_table(module, name)[name] = by_id[id(tensor)]

    def _fill_by_hand(self, modules: list[nn.Module], fill: Callable[[nn.Module], Any]) -> None:
        before = {(module, name): tensor for module, name, tensor in _tensors_of(modules)}
        for module in reversed(modules):
            if any(tensor.is_meta for _, _, tensor in _tensors_of([module])):
                fill(module)
        # to_empty creates one parameter per module, even for a parameter that several modules share.
        made: dict[int, Any] = {}
        for module, name, tensor in list(_tensors_of(modules)):
            own_table(module, name)[name] = made.setdefault(id(before.get((module, name), tensor)), tensor)

    def _agree(self, root: nn.Module) -> bool:
        """Compare the ranks' modules; return whether rank 0 sends the values of all tensors on "meta"."""
        unknown = self._first_unknown(root)
        shapes = [
            (name, tuple(tensor.shape), str(tensor.dtype))
            for name, tensor in (*root.named_parameters(), *root.named_buffers())
        ]
        gathered = self._collectives.gather_objects((sha256(repr(shapes).encode()).hexdigest(), unknown))
        for rank, (digest, _) in enumerate(gathered):
            if digest != gathered[0][0]:
                raise ConfigError(
                    f"rank {rank} built another module than rank 0, with other names, shapes or dtypes: build the "
                    "same one on every rank"
                )
        first = gathered[0][1]
        if first is None and self._broadcast:
            return unknown is not None
        for name in (first, unknown, *(name for _, name in gathered)):
            if name is not None:
                raise ConfigError(
                    f"{name!r} is on the meta device and nothing gives its values: make layers in configure_model, "
                    "or give param_init_fn, which is called with each module that has such tensors"
                )
        return False

    def _first_unknown(self, root: nn.Module) -> str | None:
        if self._fill is not None:
            return None
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            if tensor.is_meta and (self._construction is None or not self._construction.knows(tensor)):
                return name
        return None

    def _check_filled(self, modules: list[nn.Module]) -> None:
        for module, name, tensor in _tensors_of(modules):
            if tensor.is_meta:
                raise ConfigError(
                    f"param_init_fn left {name!r} of a {type(module).__name__} on the meta device: let it call "
                    "module.to_empty(device=..., recurse=False) and fill what that made"
                )

    def _refuse_differing(self, unit: nn.Module, tensors: list[torch.Tensor]) -> None:
        digest = sha256()
        for tensor in tensors:
            flat = tensor.detach().cpu().reshape(-1).contiguous()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        gathered = self._collectives.gather_objects(digest.hexdigest())
        for rank, other in enumerate(gathered):
            if other != gathered[0]:
                raise ConfigError(
                    f"rank {rank} starts with other values in {type(unit).__name__} than rank 0: set "
                    "sync_module_states=True to take rank 0's, or seed the run"
                )


def _alike(real: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, nn.Parameter):
        return real
    return nn.Parameter(real.detach(), requires_grad=tensor.requires_grad)


def own_modules(unit: nn.Module, inner: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield `unit` and the modules in it, but not those in other units."""
    seen: set[nn.Module] = set()

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        if module in seen:
            return
        seen.add(module)
        yield module
        for child in module.children():
            if child not in inner:
                yield from walk(child)

    return walk(unit)


def _tensors_of(modules: list[nn.Module]) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for module in modules:
        for name, tensor in own_tensors(module):
            yield module, name, tensor
