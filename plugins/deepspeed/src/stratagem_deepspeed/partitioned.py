"""Sharded parameters of stage 3: refused outside of their layer's forward, and followed where they change.

The engine gathers a layer's parameters around its forward and backward. In between, a parameter is empty: an in-place
clamp or a penalty on weights would silently compute with an empty tensor. `deepspeed.zero.GatheredParameters` is the
engine's own way to gather a parameter there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stratagem import Collectives, UsageError
from stratagem.errors import GradientError
from stratagem.sdk.torch_private import tensor_version
from stratagem_deepspeed import deepspeed_private as private
from stratagem_deepspeed.masters import follow_partition, master_slice
from stratagem_deepspeed.parameters import own_shard
from stratagem_deepspeed.swapping import resident, sub_group_of

_DATA: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]  # of a descriptor in C
_SET_GRAD: Any = torch.Tensor.grad.__set__  # type: ignore[union-attr]  # of a descriptor in C
_WITHOUT_VALUES = {
    getattr(getattr(torch.Tensor, name), how)
    for name in (
        "requires_grad",
        "grad",
        "is_leaf",
        "device",
        "dtype",
        "layout",
        "grad_fn",
        "name",
        "is_meta",
        "is_sparse",
        "is_cuda",
        *private.WITHOUT_VALUES,
        "output_nr",
    )
    for how in ("__get__", "__set__")
    if hasattr(getattr(torch.Tensor, name), how)
} | {
    torch.Tensor.data.__set__,  # type: ignore[attr-defined]  # of a descriptor in C
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.requires_grad_,
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.element_size,
    torch.Tensor.record_stream,
    torch.Tensor.__repr__,
    torch.autograd.grad,
    torch.autograd.backward,
}
"""Functions that work on an empty parameter as well as on a gathered one."""


def _size(parameter: Any, dim: int | None = None) -> Any:
    return parameter.ds_shape if dim is None else parameter.ds_shape[dim]


_SHAPES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.shape.__get__: lambda p: p.ds_shape,  # type: ignore[attr-defined]  # of a descriptor in C
    torch.Tensor.ndim.__get__: lambda p: len(p.ds_shape),  # type: ignore[attr-defined]  # of a descriptor in C
    torch.Tensor.size: _size,
    torch.Tensor.dim: lambda p: len(p.ds_shape),
    torch.Tensor.ndimension: lambda p: len(p.ds_shape),
    torch.Tensor.numel: lambda p: p.ds_numel,
    torch.Tensor.nelement: lambda p: p.ds_numel,
    torch.Tensor.__len__: lambda p: p.ds_shape[0],
}


class PartitionedParameter(nn.Parameter):
    """A parameter at stage 3. Computing with it raises unless it is gathered."""

    stage3_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func == _SET_GRAD and args[1] is not None:
            _refuse_other_gradients(*args)
        if func not in _WITHOUT_VALUES and not private.finds_accumulation(func, args):
            for parameter in _parameters_in((*args, *named.values())):
                if _is_gathered(parameter) and (func in _SHAPES or not _is_recorded(func, parameter)):
                    continue
                if func == _DATA:
                    with private.as_plain_tensors():
                        data = func(*args).as_subclass(PartitionedData)
                    data.stage3_name = parameter.stage3_name
                    return data
                if _is_whole(parameter):
                    continue
                if func in _SHAPES:
                    return _SHAPES[func](*args, **named)
                raise _refusal(parameter.stage3_name)
        with private.as_plain_tensors():
            return func(*args, **named)


class PartitionedData(torch.Tensor):
    """`data` of a parameter at stage 3. Writes to it don't change the parameter's version, and would be lost.

    Reading its device is allowed: the engine does so when it frees a parameter.
    """

    stage3_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _WITHOUT_VALUES:
            raise _refusal(next((each.stage3_name for each in args if isinstance(each, cls)), "its module"))
        with private.as_plain_tensors():
            return func(*args, **(kwargs or {}))


def _refuse_other_gradients(parameter: Any, gradient: torch.Tensor) -> None:
    """Refuse a gradient whose shape differs from the empty parameter's. Torch's own error wouldn't explain why."""
    with private.as_plain_tensors():
        if gradient.shape == parameter.data.shape:
            return
    raise GradientError(
        f"the gradient of {parameter.stage3_name!r} was assigned by your code, and deepspeed steps nothing but the "
        "gradients of its own backward: compute it by runtime.backward(loss), or choose strategy ddp"
    )


def _refusal(name: str) -> UsageError:
    return UsageError(
        f"parameter {name!r} was used outside of its layer's forward, where deepspeed's stage 3 has a part of it on "
        "each rank: use it between steps, within `with torch.no_grad(), "
        "deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):` on all ranks, or choose stage 2"
    )


@contextmanager
def empty_parameters_explained() -> Iterator[None]:
    """Explain torch's error when a backward needs a parameter outside of its layer's own backward.

    Autograd computes with saved parameters without calling `__torch_function__`.
    """
    try:
        yield
    except RuntimeError as error:
        if "(0)" not in str(error) and "[0]" not in str(error):
            raise
        raise UsageError(
            "a backward went through a parameter outside of its layer's own, where deepspeed's stage 3 has a part of "
            f"it on each rank (torch: {error}): leave penalties on weights to the optimizer's weight_decay, or "
            "choose stage 2 for these and for gradients of gradients; what only reads or changes parameters goes "
            "between steps, within deepspeed.zero.GatheredParameters"
        ) from error


def _parameters_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, PartitionedParameter):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _parameters_in(value)


def _is_gathered(parameter: Any) -> bool:
    """Whether a parameter is completely gathered for the user's code. One that is still being fetched isn't.

    Within a step, the engine prefetches parameters, and GatheredParameters doesn't wait for that.
    """
    return parameter.ds_status.name == "AVAILABLE" and private.is_gathered_by_user(parameter)


def _is_recorded(func: Any, parameter: nn.Parameter) -> bool:
    """Whether autograd records a call. Its backward would run when the parameter is empty again."""
    is_quiet = func in (_DATA, torch.Tensor.detach) or getattr(func, "__module__", "") == nn.init.__name__
    return torch.is_grad_enabled() and parameter.requires_grad and not is_quiet


def _is_whole(parameter: Any) -> bool:
    """Whether a parameter is gathered for its own layer, or for another layer that the engine knows to use it."""
    return parameter.ds_status.name == "AVAILABLE" and bool(
        parameter.ds_persist or parameter.ds_active_sub_modules or private.is_used_by_caller(parameter)
    )


class Partitioned:
    """An engine's parameters at stage 3.

    Args:
        engine: the DeepSpeed engine, at stage 3.
        parameters: of its module, by name.
        trained: those in its optimizer.
        collectives: of all ranks.

    Attributes:
        order: hash of the order in which this rank has called the layers; it must be equal on all ranks.
    """

    def __init__(
        self,
        engine: Any,
        parameters: Mapping[str, nn.Parameter],
        trained: Iterable[nn.Parameter],
        collectives: Collectives,
    ) -> None:
        self._zero, self._collectives = engine.optimizer, collectives
        self._parameters: list[Any] = list(parameters.values())
        self._trained = {id(parameter) for parameter in trained}
        self._classes = {id(p): type(p) for p in self._parameters}
        self.order = 0
        for name, parameter in parameters.items():
            # The engine, optimizers and the user keep references to these objects, so they can't be replaced.
            # patch: stage 3 parameters
            parameter.__class__ = PartitionedParameter
            parameter.stage3_name = name  # type: ignore[attr-defined]  # of the class that it now has
        self._handles = [
            module.register_forward_pre_hook(self._note_layer(number))
            for number, module in enumerate(engine.module.modules())
        ]
        self._versions: dict[int, tuple[int, int]] = {}
        self.note_step()

    def remove(self) -> None:
        """Remove the hooks, and give the parameters their classes back."""
        for handle in self._handles:
            handle.remove()
        for parameter in self._parameters:
            # patch: stage 3 parameters
            parameter.__class__ = self._classes[id(parameter)]
            del parameter.stage3_name

    def note_step(self) -> None:
        """Record the versions of all parameters after the engine has written its shards."""
        self._versions = {id(p): (tensor_version(p.ds_tensor), tensor_version(p)) for p in self._parameters}

    def check_assigned(self) -> None:
        """Refuse parameters whose `data` was assigned while they were sharded: the engine would drop it.

        Raises:
            UsageError: names the first one.
        """
        with private.as_plain_tensors():
            for parameter in self._parameters:
                if parameter.ds_status.name == "NOT_AVAILABLE" and parameter.data.numel():
                    raise _refusal(parameter.stage3_name)

    def follow_changes(self) -> None:
        """Copy changes made under GatheredParameters into the engine's 32-bit copies. Collective.

        Raises:
            UsageError: a parameter was changed elsewhere, and the engine has dropped the change.
        """
        self.check_assigned()
        self._follow([self._is_changed(parameter) for parameter in self._parameters])

    def follow_load(self) -> None:
        """Write all parameters into the engine's 32-bit copies, after a load. Collective."""
        self._follow([True] * len(self._parameters))

    def _follow(self, changed: list[bool]) -> None:
        if any(_is_on_drive(parameter) for parameter in self._parameters):
            # Parameters on NVMe are gathered below, on all ranks. A rank without a part of one sees no change.
            flags = self._collectives.all_reduce(torch.tensor(changed, dtype=torch.float32), "max")
            changed = [bool(flag) for flag in flags]
        for parameter, is_changed in zip(self._parameters, changed):
            if is_changed and id(parameter) in self._trained:
                follow_partition(self._zero, parameter, self._part(parameter))
        self.note_step()

    def _is_changed(self, parameter: Any) -> bool:
        part, whole = self._versions[id(parameter)]
        if tensor_version(parameter.ds_tensor) != part:
            return True
        with private.as_plain_tensors():
            # A rank without a part of a small parameter can't tell how it was changed.
            has_part = own_shard(parameter, torch.empty(parameter.ds_shape, device="meta")).numel() > 0
        if has_part and tensor_version(parameter) != whole:
            raise _refusal(parameter.stage3_name)
        return False

    def _part(self, parameter: Any) -> torch.Tensor:
        if not _is_on_drive(parameter):
            part: torch.Tensor = parameter.ds_tensor.detach()
            return part
        from deepspeed import zero

        with zero.GatheredParameters([parameter]):
            return own_shard(parameter, parameter.detach()).clone()

    def own_part(self, parameter: Any) -> torch.Tensor:
        """Return a copy of this rank's shard of a parameter, in 32 bits if the engine has a 32-bit copy."""
        if id(parameter) in self._trained:
            with resident(self._zero, sub_group_of(self._zero, parameter)) as flat:
                return master_slice(self._zero, 3, flat.detach(), parameter).clone()
        part: torch.Tensor = parameter.ds_tensor.detach()
        return part.clone()

    def _note_layer(self, number: int) -> Callable[..., None]:
        def note(module: nn.Module, args: Any) -> None:
            # Hashes of ints are equal in all processes, unlike those of strings.
            self.order = hash((self.order, number))

        return note


def _is_on_drive(parameter: Any) -> bool:
    return bool(parameter.ds_tensor.status.name != "AVAILABLE")
