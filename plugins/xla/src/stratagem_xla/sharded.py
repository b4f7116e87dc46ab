"""A module whose parameters lie in shards over the devices of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem import ConfigError, SetupRequest
from stratagem_xla.client import send_off
from stratagem_xla.prepared import XlaPrepared, placed
from stratagem_xla.sharding import Layout, spec_of, tensors_in
from stratagem_xla.xla_private import module_hooks

if TYPE_CHECKING:
    from stratagem import CheckpointReader
    from stratagem_xla.fsdp import Policy


@dataclass(frozen=True)
class Sharded:
    """What came of sharding."""

    root: nn.Module
    """To be called; contains the user's module, whose parameters keep their names."""
    undo: Callable[[], None]
    """Takes torch_xla's hooks off the user's modules."""


def shard(request: SetupRequest, layout: Layout, policy: Policy) -> Sharded:
    """Move the module to the devices, and cut its parameters."""
    root, added = placed(request), list[Any]()

    def undo() -> None:
        for module, before in hooks.items():
            for handle in set(module_hooks(module)) - before:
                del module_hooks(module)[handle]
        for handle in added:
            handle.remove()

    hooks = {module: set(module_hooks(module)) for module in root.modules()}
    if layout.mesh is None:
        return Sharded(root, undo)
    import torch_xla.distributed.spmd as xs
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

    for unit in units(request.original_module, policy):
        # What wrapping would do, without a wrapper in the user's module: names and types stay.
        xs.xla_sharding.apply_backward_optimization_barrier(unit)
        added.append(unit.register_forward_hook(partial(_shard_output, layout)))
    before = set(module_hooks(root))
    wrapped: nn.Module = SpmdFullyShardedDataParallel(root, mesh=layout.mesh, shard_output=lambda *_: None)
    for handle in set(module_hooks(root)) - before:
        # A barrier after all else has nothing to keep apart, and warns of inputs without gradients.
        del module_hooks(root)[handle]
    for buffer in root.buffers():
        layout.replicate(buffer)
    return Sharded(wrapped, undo)


def _shard_output(layout: Layout, module: nn.Module, args: Any, output: Any) -> None:
    """Cut a unit's output along its samples, which keeps XLA from gathering activations."""
    given = next((tensor for tensor in tensors_in(args) if tensor.dim()), None)
    layout.shard_batch(output, None if given is None else given.shape[0])


def units(original_module: nn.Module, policy: Policy) -> list[nn.Module]:
    """Return the modules of the user's that a policy names.

    Raises:
        ConfigError: it isn't a policy, or names no module of this model.
    """
    if policy is None:
        return [
            each
            for module in original_module.modules()
            if isinstance(module, nn.ModuleList)
            for each in module
        ]
    if callable(policy) and not isinstance(policy, type):
        found: list[nn.Module] = []
        _descend(original_module, policy, found)
        return [module for module in found if module is not original_module]
    given = [policy] if isinstance(policy, (str, type)) else list(policy)
    return [module for each in given for module in _of_class(original_module, each)]


def _descend(module: nn.Module, policy: Callable[..., Any], found: list[nn.Module]) -> int:
    """Ask as `torch_xla.distributed.fsdp.wrap` does; return how many elements are in units."""
    total = sum(parameter.numel() for parameter in module.parameters())
    try:
        if not policy(module=module, recurse=True, unwrapped_params=total):
            return 0
        inside = sum(_descend(child, policy, found) for child in module.children())
        if not policy(module=module, recurse=False, unwrapped_params=total - inside):
            return inside
    except TypeError as error:
        raise ConfigError(
            f"auto_wrap_policy={policy!r} can't be asked as policy(module=..., recurse=..., unwrapped_params=...): "
            f"{error}; give a policy of torch_xla.distributed.fsdp.wrap, or module classes"
        ) from error
    found.append(module)
    return total


def _of_class(original_module: nn.Module, wanted: Any) -> Iterable[nn.Module]:
    if isinstance(wanted, str):
        matching = [module for module in original_module.modules() if type(module).__name__ == wanted]
    elif isinstance(wanted, type) and issubclass(wanted, nn.Module):
        matching = [module for module in original_module.modules() if isinstance(module, wanted)]
    else:
        raise ConfigError(
            f"auto_wrap_policy has {wanted!r}: give module classes, their names, or a policy of "
            "torch_xla.distributed.fsdp.wrap"
        )
    if not matching:
        names = sorted({type(module).__name__ for module in original_module.modules()})
        raise ConfigError(
            f"auto_wrap_policy names {getattr(wanted, '__name__', wanted)!r}, and this model has none: it has "
            f"{', '.join(names)}"
        )
    return matching


class ShardedPrepared(XlaPrepared):
    """A module in shards, with its optimizers' states.

    Args:
        request: as the `setup` hook received it; its module has been sharded.
        layout: of the shards.
        sharded: what of it.
    """

    def __init__(self, request: SetupRequest, layout: Layout, sharded: Sharded) -> None:
        self._undo = sharded.undo
        super().__init__(request, layout, sharded.root)

    def stepped(self, index: int) -> None:
        """Shard the states of an optimizer like their parameters, after its first step has made them."""
        if self.layout.mesh is None:
            return
        for parameter, state in self.optimizers[index].state.items():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape and not spec_of(value):
                    self._lay_out(value)

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        for index in range(len(self.optimizers)):
            self.stepped(index)
        send_off()

    def release(self) -> None:
        super().release()
        self._undo()

    def _lay_out(self, value: torch.Tensor) -> None:
        # As FSDPv2 lays out the parameter itself.
        if value.dim() and value.device.type == "xla":
            self.layout.shard(value, list(value.shape).index(max(value.shape)))
