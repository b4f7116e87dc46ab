"""Shards a module's parameters one layer at a time, so that no rank ever holds the whole module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.torch_private import own_buffers, own_parameters, own_table, own_tensors
from torch import nn

from stratagem import ConfigError
from stratagem.sdk.torch_private import PARAMETER_HOOKS
from stratagem_deepspeed.deepspeed_private import MARKS, number_parameters_from, use_plain_dict

if TYPE_CHECKING:
    from stratagem_sharding.deferred_init import Construction

    from stratagem import SetupRequest
    from stratagem_deepspeed.kept import Parts


Made = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Id of a tensor on "meta" → the tensor itself, and its replacement."""


def materialize(request: SetupRequest, construction: Construction | None, parts: Parts) -> Made:
    """Replace parameters and buffers on "meta" by tensors with the recorded values.

    Args:
        request: its module is changed in place.
        construction: what tensors on "meta" were recorded in, if they were.
        parts: what an earlier run of this process left.

    Returns:
        The tensors on "meta" and their replacements.

    Raises:
        ConfigError: nothing gives the values of a tensor on "meta".
    """
    made: Made = {}
    for module in request.module.modules():
        parts.restore(module.parameters(recurse=False))
        _fill(request, module, construction, made)
    return made


def shard_parameters(
    request: SetupRequest, construction: Construction | None, parts: Parts, config: dict[str, Any]
) -> Made:
    """Shard every parameter over the ranks, with rank 0's values. Collective.

    Each layer is materialized, sharded and freed before the next one.

    Args:
        request: its module is changed in place.
        construction: what tensors on "meta" were recorded in, if they were.
        parts: what an earlier run of this process left.
        config: the engine's complete configuration.

    Returns:
        The tensors on "meta" and their replacements.

    Raises:
        ConfigError: nothing gives the values of a tensor on "meta".
    """
    from deepspeed import zero

    # Ranks must number parameters equally, even if one of them has already had an engine in this process.
    begin = torch.tensor(zero.Init.param_id, device=request.device)
    number_parameters_from(int(request.collectives.all_reduce(begin, "max")))
    if request.precision.param_dtype is None:
        # Parameters stay in 32 bits. With bf16 or fp16 enabled, zero.Init's buffers for NVMe would round them.
        config = {**config, **{half: {**config[half], "enabled": False} for half in ("bf16", "fp16")}}
    made: Made = {}
    cut: set[int] = set()
    swapper: Any = None
    for module in request.module.modules():
        _fill(request, module, construction, made)
        own = [p for p in own_parameters(module).values() if p is not None and id(p) not in cut]
        cut |= {id(parameter) for parameter in own}
        parts.restore(own)
        layer = nn.Module()
        for index, parameter in enumerate(own):
            layer.register_parameter(str(index), parameter)
        if own:
            # By default, zero.Init replaces torch.nn.functional.linear for the whole process
            # (deepspeedai/DeepSpeed#952).
            init = zero.Init(
                module=layer, config_dict_or_path=config, mem_efficient_linear=False, param_swapper=swapper
            )
            # On nvme, a new swapper per layer would empty the folder of the earlier ones.
            swapper = init.param_swapper
        for name, buffer in own_buffers(module).items():
            if buffer is not None:
                own_buffers(module)[name] = buffer.to(request.device)
    return made


def number_modules(root: nn.Module) -> None:
    """Number modules from 0. The engine compares these numbers between ranks."""
    for number, module in enumerate(root.modules()):
        # patch: engine state
        vars(module)["ds_id"] = number


def _fill(request: SetupRequest, module: nn.Module, construction: Construction | None, made: Made) -> None:
    missing = [tensor for _, tensor in own_tensors(module) if tensor.is_meta and id(tensor) not in made]
    for tensor in missing:
        if construction is None or not construction.knows(tensor):
            raise ConfigError(
                f"a parameter or buffer of {type(module).__qualname__} is on the meta device and nothing gives its "
                "values: make layers in configure_model"
            )
    if construction is not None:
        for tensor, real in zip(missing, construction.materialize(missing)):
            # Keep the meta tensor alive with its value: shared parameters are found by its id.
            made[id(tensor)] = (tensor, _alike(real, tensor))
    for name, tensor in list(own_tensors(module)):
        if tensor.is_meta:
            own_table(module, name)[name] = made[id(tensor)][1]
    dtype = request.precision.param_dtype
    if dtype is not None:
        for _, tensor in own_tensors(module):
            if tensor.is_floating_point() and tensor.dtype != dtype and not hasattr(tensor, "ds_id"):
                tensor.data = tensor.data.to(dtype)


def _alike(real: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if not isinstance(like, nn.Parameter):
        return real
    made = nn.Parameter(real, requires_grad=like.requires_grad)
    vars(made).update(vars(like))
    for slot in PARAMETER_HOOKS:
        # The same dict object, so that the user's handles still remove their hooks.
        if hooks := getattr(like, slot):
            setattr(made, slot, hooks)
    return made


class Traces:
    """Removes the attributes that the engine leaves on a module. Create it before the engine."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._attributes = {id(parameter): set(vars(parameter)) for parameter in root.parameters()}
        self._modules = {id(module): set(vars(module)) for module in root.modules()}

    def remove(self) -> None:
        """Remove the engine's attributes from parameters and modules; values stay."""
        for module in self._root.modules():
            use_plain_dict(module)
            for key in set(vars(module)) - self._modules.get(id(module), set(vars(module))):
                if key.startswith(MARKS):
                    delattr(module, key)
        for parameter in self._root.parameters():
            for key in set(vars(parameter)) - self._attributes.get(id(parameter), set()):
                delattr(parameter, key)
