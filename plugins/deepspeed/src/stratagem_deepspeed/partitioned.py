"""Parameters of which a rank has a part, used outside of their layer's forward: whole, and written back.

The engine gathers a layer's parameters around its forward and backward. Between, a parameter is empty: a clamp in
place or a penalty on weights would compute with nothing, without an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from stratagem.sdk.torch_private import tensor_version
from stratagem_deepspeed import deepspeed_private as private
from stratagem_deepspeed.masters import follow_partition, master_slice
from stratagem_deepspeed.parameters import piece
from stratagem_deepspeed.swapping import resident, sub_group_of

ENGINE = ("deepspeed.", "stratagem_deepspeed.", *private.KNOWING)
"""Modules whose functions know that a parameter may be empty."""

_READ: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_PASSED = {
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
    torch.Tensor.data.__set__,  # type: ignore[attr-defined]
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.requires_grad_,
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.element_size,
    torch.Tensor.__repr__,
}
"""What an empty parameter can be asked as well as a whole one."""


def _size(parameter: Any, dim: int | None = None) -> Any:
    return parameter.ds_shape if dim is None else parameter.ds_shape[dim]


_SHAPES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.shape.__get__: lambda p: p.ds_shape,  # type: ignore[attr-defined]
    torch.Tensor.ndim.__get__: lambda p: len(p.ds_shape),  # type: ignore[attr-defined]
    torch.Tensor.size: _size,
    torch.Tensor.dim: lambda p: len(p.ds_shape),
    torch.Tensor.ndimension: lambda p: len(p.ds_shape),
    torch.Tensor.numel: lambda p: p.ds_numel,
    torch.Tensor.nelement: lambda p: p.ds_numel,
    torch.Tensor.__len__: lambda p: p.ds_shape[0],
}


def _intercept(
    cls: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    named = kwargs or {}
    if func not in _PASSED and not _knows(sys._getframe(1)):
        answer = _SHAPES.get(func)
        if answer is not None and hasattr(args[0], "ds_shape"):
            return answer(*args, **named)
        for parameter in _partitioned((*args, *named.values())):
            parameter.ds_access.use(parameter, func == _READ)
    with private.as_plain_tensors():
        return func(*args, **named)


def _knows(caller: FrameType) -> bool:
    """Whether what calls with a parameter knows that it may be empty."""
    within: str = caller.f_globals.get("__name__", "")
    return within.startswith(ENGINE) and caller.f_code.co_name not in private.STATE_DICT


def _partitioned(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, PartitionedParameter):
            if hasattr(value, "ds_access"):
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _partitioned(value)


class PartitionedParameter(nn.Parameter):
    """A parameter at stage 3. What computes with it outside of the engine gathers it first."""


_looking = False


def intercept(there: bool) -> bool:
    """Have uses of parameters looked at, or not: the engine's own needn't be, and are many.

    Returns:
        Whether they were until now.
    """
    global _looking
    before, _looking = _looking, there
    if before != there:
        answer: Any = classmethod(_intercept) if there else private.NOT_ASKED
        PartitionedParameter.__torch_function__ = answer  # type: ignore[method-assign]
    return before


@contextmanager
def engine_at_work() -> Iterator[None]:
    """Around what only the engine does with parameters."""
    before = intercept(False)
    try:
        yield
    finally:
        intercept(before)


class Access:
    """Gathers an engine's parameters for whoever uses them between layers, until the backward after it.

    Args:
        engine: DeepSpeed's, at stage 3.
        parameters: of its module.
        trained: those that its optimizer has.

    Attributes:
        order: a number of the order in which this rank has gone through the layers: equal on all ranks.
    """

    def __init__(
        self, engine: Any, parameters: Iterable[nn.Parameter], trained: Iterable[nn.Parameter]
    ) -> None:
        self._zero = engine.optimizer
        self._parameters: list[Any] = list(parameters)
        self._trained = {id(parameter) for parameter in trained}
        self._registry = engine.module.ds_inflight_param_registry
        self._held: dict[int, Any] = {}
        self._read: set[int] = set()
        self._versions = {id(p): tensor_version(p) for p in self._parameters}
        self._changed: dict[int, tuple[Any, torch.Tensor]] = {}
        self._partition = {id(p): p.partition for p in self._parameters}
        self._classes = {id(p): type(p) for p in self._parameters}
        self.order = 0
        for parameter in self._parameters:
            parameter.ds_access = self
            parameter.partition = self._partition_later(parameter)
            parameter.__class__ = PartitionedParameter
        coordinator = self._coordinator = _coordinator(engine)
        self._fetch = private.replace(coordinator, private.FETCH, self._fetching)
        self._release = private.replace(coordinator, private.RELEASE, self._releasing)
        intercept(True)

    def remove(self) -> None:
        """Let go of the engine and the parameters."""
        self.release()
        for parameter in self._parameters:
            parameter.__class__ = self._classes[id(parameter)]
            del parameter.ds_access
            parameter.partition = self._partition[id(parameter)]
        private.put_back(self._coordinator, private.FETCH, private.RELEASE)
        intercept(False)

    def use(self, parameter: Any, is_read: bool) -> None:
        """Have a parameter whole until `release`. Collective.

        Args:
            parameter: which.
            is_read: whether its `data` are asked for, writing to which leaves no trace on the parameter.
        """
        if is_read:
            self._read.add(id(parameter))
        if id(parameter) in self._held:
            return
        status = parameter.ds_status.name
        if status == "AVAILABLE":
            # Its layer is at work, or the engine has yet to release it.
            if parameter.ds_active_sub_modules or parameter.ds_persist:
                return
        elif status == "INFLIGHT":
            self._registry.pop(parameter).wait()
        else:
            with engine_at_work():
                parameter.all_gather([parameter])
        self._held[id(parameter)] = parameter

    def release(self) -> None:
        """Write back what was changed of gathered parameters, and have parts alone again."""
        held, self._held = self._held, {}
        for parameter in held.values():
            # A layer that is between its forward and backward releases it itself.
            is_free = parameter.ds_status.name == "AVAILABLE" and not parameter.ds_active_sub_modules
            if is_free and not parameter.ds_persist:
                parameter.partition()

    def follow_changes(self) -> None:
        """Write into the engine's 32-bit copies what has been written into parameters."""
        with engine_at_work():
            self._follow_changes()

    def _follow_changes(self) -> None:
        self.release()
        for parameter in self._parameters:
            if parameter.ds_status.name == "AVAILABLE" and self._is_changed(parameter):
                self._keep(parameter)
        changed, self._changed = self._changed, {}
        for parameter, own in changed.values():
            parameter.ds_tensor.data.view(-1)[: own.numel()].copy_(own[: parameter.ds_tensor.numel()])
            if id(parameter) in self._trained:
                follow_partition(self._zero, parameter, own)

    def own_part(self, parameter: Any) -> torch.Tensor:
        """Return a copy of this rank's part of a parameter, in 32 bits where the engine has that."""
        if id(parameter) in self._trained:
            with resident(self._zero, sub_group_of(self._zero, parameter)) as flat:
                return master_slice(self._zero, 3, flat.detach(), parameter).clone()
        part: torch.Tensor = parameter.ds_tensor.detach()
        return part.clone()

    def _is_changed(self, parameter: Any) -> bool:
        return id(parameter) in self._read or tensor_version(parameter) != self._versions[id(parameter)]

    def _keep(self, parameter: Any) -> None:
        self._changed[id(parameter)] = (parameter, piece(parameter, parameter.data).clone())
        self._versions[id(parameter)] = tensor_version(parameter)
        self._read.discard(id(parameter))

    def _partition_later(self, parameter: Any) -> Callable[..., None]:
        original = self._partition[id(parameter)]

        def partition(*args: Any, has_been_updated: bool = False, **kwargs: Any) -> None:
            if id(parameter) in self._held:
                return
            if parameter.ds_status.name == "AVAILABLE":
                if has_been_updated:
                    self._versions[id(parameter)] = tensor_version(parameter)
                    self._read.discard(id(parameter))
                    self._changed.pop(id(parameter), None)
                elif self._is_changed(parameter):
                    self._keep(parameter)
                    has_been_updated = True
            original(*args, has_been_updated=has_been_updated, **kwargs)

        return partition

    def _fetching(self, module: Any, forward: bool) -> None:
        # The same number in every process: those of whole numbers are.
        self.order = hash((self.order, module.ds_id, forward))
        before = intercept(False)
        try:
            self._fetch(module, forward)
            if before and not forward:
                self._hold(module)
        finally:
            intercept(before)

    def _hold(self, module: nn.Module) -> None:
        """Have a layer's parameters whole until `release`, in a backward of the step's own, as torch.autograd.grad.

        The engine gathers a layer for one backward after its forward, and this step's is still to come.
        """
        parameters: Any = module.parameters()
        self._held.update({id(p): p for p in parameters if p.ds_status.name == "AVAILABLE"})

    def _releasing(self, *args: Any, **kwargs: Any) -> None:
        before = intercept(False)
        try:
            self._release(*args, **kwargs)
        finally:
            intercept(before)


def _coordinator(engine: Any) -> Any:
    zero = engine.optimizer
    # Without training, the engine has what gathers parameters and no optimizer.
    offload = getattr(zero, "parameter_offload", zero)
    return offload.get_param_coordinator()
