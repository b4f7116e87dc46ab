"""`WholeDTensor`: a DTensor that acts as the whole tensor. `WholeView`: a view of one; writes reach the shards.

torch's DTensor shows that it is a shard: views are copies whose changes are lost, random numbers are drawn once per
shard, `.data =` has no effect, and a plain tensor can't be used in the same operation. Here, elementwise operations
run on shards. Every other operation runs on the whole tensor, which all ranks gather; its changes are written to the
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stratagem.errors import ShardedUseError
from stratagem.sdk.torch_private import operation_name, tensor_version, without_subclass_functions
from stratagem_sharding.torch_private import (
    detached,
    local_shard,
    tree_flatten,
    tree_map,
    view_base,
)
from stratagem_sharding.whole_tensors.gathering import (
    agree,
    gather,
    gather_with_grad,
    make_equal,
    require_equal,
    shard_like,
    write,
)
from stratagem_sharding.whole_tensors.shard_arithmetic import (
    ABOUT_THE_TENSOR,
    ELEMENTWISE,
    GIVES_TENSORS,
    NEW,
    RANDOM_LIKE,
    READERS,
    SHAPED_AS,
    UNCOUNTED,
    VIEW_ATTRIBUTES,
    is_on_shards,
)

__all__ = ["KEPT_GRADIENT", "KeptGradient", "WholeDTensor", "WholeView", "hold_whole"]

WANTS_ONE_TYPE = torch.__version__ < "2.13"  # torch compares it as a version
"""Whether torch refuses a view whose type is DTensor and whose base is of a subclass ("expected types to match" in
torch.utils._python_dispatch)."""

KEPT_GRADIENT = "_stratagem_kept_gradient"
"""Attribute of a parameter that has a `KeptGradient`: a gradient stored outside of `.grad`."""

_ALIASES = "_stratagem_aliases"
"""Attribute of a sharded parameter: weak references to the tensors that the user's code got as its `.data`."""

_READ_NO_VALUES: set[Callable[..., Any]] = set()
"""Cache of operations that neither read nor return values; strategies call about twenty per parameter and step."""


class KeptGradient(Protocol):
    """A gradient that isn't averaged yet, and isn't part of the parameter's `.grad`."""

    def reduce_into_grad(self) -> None:
        """Average it and add it to `.grad` of the parameter. Collective. Called before the user's code reads that."""

    def drop(self) -> None:
        """Discard it. Called when the user's code assigns `.grad`."""


class WholeDTensor(DTensor):
    """A DTensor that a user's code sees as the whole tensor.

    Created by assigning the class of a DTensor, since `fully_shard` and autograd create their tensors themselves.
    Operations on it are collective, except elementwise ones between tensors of the same layout, and those that read
    no values.
    """

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _READ_NO_VALUES:
            with without_subclass_functions():
                return func(*args, **(kwargs or {}))
        return _call(func, args, kwargs or {})

    if WANTS_ONE_TYPE:

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]  # torch's stub of it lacks `func`
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Dispatch with all arguments as plain DTensors."""
            given = tree_flatten((args, kwargs))[0]
            whole: list[Any] = [each for each in given if type(each) is WholeDTensor]
            for each in whole:
                # patch: whole tensors
                each.__class__ = DTensor
            try:
                return DTensor.__torch_dispatch__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch has no types for it
            finally:
                for each in whole:
                    # patch: whole tensors
                    each.__class__ = WholeDTensor

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the whole tensor as a plain tensor; as a Parameter if this is a Parameter. Collective."""
        if id(self) not in memo:
            whole = gather(self, "a copy")
            memo[id(self)] = (
                nn.Parameter(whole, self.requires_grad)
                if isinstance(self, nn.Parameter)
                else whole.requires_grad_(self.requires_grad)
            )
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the whole tensor as a plain one, for example in `torch.save(module.state_dict(), f)`. Collective."""
        whole = gather(self, "pickling").requires_grad_(self.requires_grad)
        if isinstance(self, nn.Parameter):
            whole = nn.Parameter(whole.detach(), self.requires_grad)
        return whole.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch has no types for it


class WholeView(torch.Tensor):
    """A view of a gathered whole tensor. It shows later changes of the shards, and writes to it reach them."""

    _source: _Source

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.clone().detach().requires_grad_(self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().detach().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch has no types for it


def hold_whole(parameters: Iterable[torch.Tensor]) -> None:
    """Let the parameters that are DTensors act as whole tensors, and their gradients too."""
    for parameter in parameters:
        _as_whole(parameter)


class _Source:
    """A whole tensor, and the shards that it was gathered from."""

    def __init__(self, sharded: WholeDTensor, operation: str, with_grad: bool) -> None:
        self.sharded = sharded
        self.whole = (
            gather_with_grad(sharded, operation)
            if with_grad and sharded.requires_grad
            else gather(sharded, operation)
        )
        self.remember()

    def remember(self) -> None:
        self.version = tensor_version(self.whole)
        self.shard_versions = _versions(self.sharded)

    def refresh(self, operation: str) -> None:
        """Gather again if the shards have changed, for example by an optimizer's step. Collective."""
        if _versions(self.sharded) != self.shard_versions:
            fresh = gather(self.sharded, operation)
            with torch.inference_mode(False), torch.no_grad():
                self.whole.detach().copy_(fresh)
            self.remember()

    def is_changed(self) -> bool:
        return tensor_version(self.whole) != self.version

    def write(self, operation: str, is_random: bool) -> None:
        """Write the whole tensor's values to the shards; random values are the first rank's. Collective."""
        if torch.is_grad_enabled() and self.sharded.requires_grad and self.sharded.is_leaf:
            raise RuntimeError(
                "a parameter that requires grad is being changed in place: do it within torch.no_grad()"
            )
        if self.whole.shape != self.sharded.shape:
            raise ShardedUseError(
                f"a sharded tensor of shape {tuple(self.sharded.shape)} can't be given the shape "
                f"{tuple(self.whole.shape)} in place: make a new one, as with reshape"
            )
        if is_random:
            agree(self.sharded, "random values")
            make_equal(self.whole, self.sharded.device_mesh)
        else:
            require_equal(self.whole, self.sharded, operation)
        write(self.sharded, self.whole)
        self.remember()

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor shares the whole tensor's memory."""
        address = self.whole.untyped_storage().data_ptr()
        return address != 0 and tensor.untyped_storage().data_ptr() == address


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    name = operation_name(function)
    is_attribute = name.startswith("get ") and name[4:] not in VIEW_ATTRIBUTES
    if (is_attribute or name in ABOUT_THE_TENSOR) and name not in GIVES_TENSORS:
        _READ_NO_VALUES.add(function)
    if is_on_shards() and name not in READERS:
        with without_subclass_functions():
            return function(*args, **kwargs)
    if is_attribute:
        return _attribute(function, args, name)
    if name.startswith("set "):
        return _set_attribute(function, args, name)
    if name == "detach":
        return _detach(args[0])
    if function is torch.autograd.grad:
        return _gradients(*args, **kwargs)
    if name in ABOUT_THE_TENSOR:
        with without_subclass_functions():
            return tree_map(_as_whole, function(*args, **kwargs))
    if name in SHAPED_AS and not isinstance(args[0], (WholeDTensor, WholeView)):
        with without_subclass_functions():
            return function(args[0], _empty(args[1]).expand(args[1].shape))
    if name in NEW and isinstance(args[0], WholeDTensor):
        return getattr(_empty(args[0]), name)(*args[1:], **kwargs)
    if name in RANDOM_LIKE and isinstance(args[0], WholeDTensor):
        return _random_like(function, args, kwargs)
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    if any(type(each) is DTensor for each in tensors):
        # Activations of a split layer may have a weight's shape and layout: run torch's own operations on them.
        with without_subclass_functions():
            return function(*args, **kwargs)
    if _runs_on_shards(name, args, tensors):
        with without_subclass_functions():
            return tree_map(_as_whole, function(*args, **kwargs))
    if name == "copy_" and isinstance(args[0], WholeDTensor) and len(tensors) == 2:
        return _copy(args[0], args[1])
    if getattr(function, "__module__", None) == nn.init.__name__:
        # These functions call `__torch_function__` before they enter torch.no_grad().
        with torch.no_grad():
            return _on_whole(function, args, kwargs, name)
    return _on_whole(function, args, kwargs, name)


def _attribute(function: Callable[..., Any], args: Any, name: str) -> Any:
    (tensor,) = args[:1]
    if name == "get data":  # a detached shard would count its writes separately
        return _detach(tensor)
    kept: KeptGradient | None = getattr(tensor, KEPT_GRADIENT, None) if name == "get grad" else None
    if kept is not None:
        kept.reduce_into_grad()
    with without_subclass_functions():
        return _as_whole(function(*args))


def _detach(tensor: Any) -> Any:
    with without_subclass_functions():
        if not isinstance(tensor, DTensor):
            return _view(tensor.detach(), tensor._source)
    alias = detached_as_whole(tensor)
    kept = [each for each in getattr(tensor, _ALIASES, ()) if each() is not None]
    setattr(tensor, _ALIASES, [*kept, ref(alias)])
    return alias


def detached_as_whole(tensor: Any) -> Any:
    """Return the same shards without a gradient, as a `WholeDTensor`."""
    with without_subclass_functions():
        return _as_whole(detached(tensor))


def _refuse_shared_memory(attribute: str, target: Any, value: torch.Tensor) -> None:
    """Refuse assignments that would make tensors share memory, since shards are copies of an assigned value."""
    base = None if isinstance(value, (DTensor, WholeView)) else view_base(value)
    if base is not None and base.numel() > value.numel():
        raise ShardedUseError(
            f".{attribute} of a sharded parameter was given a part of a larger tensor, which it would not follow: "
            f"give it a copy, as by .{attribute} = part.clone()"
        )
    held = [alias for each in getattr(target, _ALIASES, ()) if (alias := each()) is not None]
    # `parameter.data -= tensor` assigns the same object that reading `.data` returned.
    if attribute == "data" and any(alias is not value for alias in held):
        raise ShardedUseError(
            "`parameter.data = ...` would overwrite what your code holds as `.data` of the same sharded parameter: "
            "hold a copy, parameter.data.clone(), or write by parameter.data.copy_(tensor)"
        )


def _set_attribute(function: Callable[..., Any], args: Any, name: str) -> None:
    target, value = args
    kept: KeptGradient | None = getattr(target, KEPT_GRADIENT, None) if name == "set grad" else None
    if kept is not None:
        kept.drop()
    if name in ("set data", "set grad") and isinstance(target, WholeDTensor) and value is not None:
        if tuple(value.shape) != tuple(target.shape) or value.dtype != target.dtype:
            raise ShardedUseError(
                f"{name[4:]} of a sharded parameter is {_kind(target)}, and was given {_kind(value)}: give it a "
                "tensor of the same shape and dtype, or make a new module and set that up"
            )
        _refuse_shared_memory(name[4:], target, value)
        if name == "set data":
            with torch.no_grad():
                _copy(detached_as_whole(target), value)
            return
        if not (isinstance(value, DTensor) and _layout(value) == _layout(target)):
            if isinstance(value, DTensor):
                plain = gather(value, ".grad =")
            else:
                plain = _plain(value, ".grad =")
                require_equal(plain, target, ".grad =")
            value = _as_whole(shard_like(plain, target))
        args = target, value
    elif name == "set data" and isinstance(target, WholeView):
        target.copy_(value)
        return
    with without_subclass_functions():
        function(*args)


def _copy(target: WholeDTensor, value: torch.Tensor) -> WholeDTensor:
    """Write a tensor of any layout to shards."""
    if torch.is_grad_enabled() and target.requires_grad and target.is_leaf:
        raise RuntimeError(
            "a parameter that requires grad is being changed in place: do it within torch.no_grad()"
        )
    with torch.no_grad():
        if isinstance(value, DTensor) and _layout(value) == _layout(target):
            with without_subclass_functions():
                local_shard(target).copy_(local_shard(value))
            return target
        if isinstance(value, DTensor):
            whole = gather(value, "copy_")
        else:
            whole = _plain(value, "copy_")
            require_equal(whole, target, "copy_")
        write(target, whole.expand(target.shape))
    return target


def _gradients(outputs: Any, inputs: Any, **options: Any) -> Any:
    """Return gradients as `torch.autograd.grad` does; refuse parameters whose gathered copy a forward used."""
    fills = options.pop("materialize_grads", False)
    is_allowed = options.pop("allow_unused", False)
    with without_subclass_functions():
        found = torch.autograd.grad(outputs, inputs, **options, allow_unused=True)
    for at, (each, gradient) in enumerate(zip(inputs, found)):
        # A forward's output depends on a gathered copy; a penalty in the same loss depends on the parameter itself.
        is_copied = hasattr(each, KEPT_GRADIENT)
        if isinstance(each, WholeDTensor) and (gradient is None or is_copied):
            raise ShardedUseError(
                f"torch.autograd.grad has no whole gradient of the sharded parameter at index {at} of its inputs, "
                f"of shape {tuple(each.shape)}: a forward uses gathered copies of parameters, and their gradients "
                "reach the parameters in a backward alone; use runtime.backward(loss) or choose ddp"
            )
        if gradient is None and not is_allowed:
            raise RuntimeError(
                f"the differentiated tensor at index {at} was not used in the graph: set allow_unused=True if this "
                "is what you want"
            )
    return tuple(
        tree_map(_as_whole, torch.zeros_like(each) if fills and gradient is None else gradient)
        for each, gradient in zip(inputs, found)
    )


def _random_like(function: Callable[..., Any], args: Any, kwargs: Any) -> torch.Tensor:
    sharded = args[0]
    stand_in = torch.empty(sharded.shape, dtype=sharded.dtype, device=sharded.device)
    made: torch.Tensor = function(stand_in, *args[1:], **kwargs)
    agree(sharded, "random values")
    make_equal(made, sharded.device_mesh)
    return made


def _runs_on_shards(name: str, args: Any, tensors: list[torch.Tensor]) -> bool:
    if name not in ELEMENTWISE or any(isinstance(each, WholeView) for each in tensors):
        return False
    sharded = [each for each in tensors if isinstance(each, WholeDTensor)]
    if any(not isinstance(each, WholeDTensor) and each.dim() for each in tensors):
        return False
    if any(placement.is_partial() for each in sharded for placement in each.placements):
        return False
    layouts = {_layout(each) for each in sharded}
    # In operations on lists, each tensor has its own layout; torch compares them.
    if len(layouts) > 1 and not name.startswith(("_foreach", "_amp_foreach", "_fused")):
        return False
    writes = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    return writes or not (torch.is_grad_enabled() and any(each.requires_grad for each in sharded))


def _on_whole(function: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    """Run an operation on whole tensors, and write its changes to their shards. Collective."""
    operation = name.removeprefix("get .").strip("_") if not name.startswith("get ") else name[4:]
    sources: dict[int, _Source] = {}
    plain_of: dict[int, torch.Tensor] = {}
    given: dict[int, torch.Tensor] = {}
    with_grad = torch.is_grad_enabled()

    def to_plain(value: Any) -> Any:
        if not isinstance(value, (WholeDTensor, WholeView)):
            return value
        if id(value) not in plain_of:
            if isinstance(value, WholeDTensor):
                source = _Source(value, operation, with_grad)
                plain = source.whole
            else:
                source = value._source
                source.refresh(operation)
                plain = _without_class(value)
            sources[id(source)] = source
            plain_of[id(value)] = plain
            given[id(plain)] = value
        return plain_of[id(value)]

    plain_args, plain_kwargs = tree_map(to_plain, (args, kwargs))
    found = list(sources.values())
    random = [torch.get_rng_state(), *_device_states(found)]
    if torch.is_inference_mode_enabled():
        # Inference mode doesn't increment version counters.
        with torch.inference_mode(False), torch.no_grad():
            result = function(*plain_args, **plain_kwargs)
    else:
        result = function(*plain_args, **plain_kwargs)
    changed = [source for source in found if source.is_changed() or name in UNCOUNTED]
    if changed:
        now = [torch.get_rng_state(), *_device_states(found)]
        is_random = bool(kwargs.get("generator")) or any(not torch.equal(a, b) for a, b in zip(random, now))
        for source in changed:
            source.write(operation, is_random)

    def to_user(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, (DTensor, WholeView)):
            return value
        if id(value) in given:
            return given[id(value)]
        source = next((source for source in found if source.has(value)), None)
        return value if source is None else _view(value, source)

    if name in ("numpy", "__array__"):
        # A write to this array would not reach the shards.
        result.flags.writeable = False
    return tree_map(to_user, result)


def _device_states(sources: list[_Source]) -> list[torch.Tensor]:
    devices = {source.whole.device for source in sources if source.whole.device.type != "cpu"}
    return [torch.get_device_module(device).get_rng_state(device) for device in devices]


def _view(tensor: torch.Tensor, source: _Source) -> WholeView:
    with without_subclass_functions():
        view: WholeView = tensor.as_subclass(WholeView)
    view._source = source
    return view


def _without_class(view: torch.Tensor) -> torch.Tensor:
    with without_subclass_functions():
        return view.as_subclass(torch.Tensor)


def _plain(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    if isinstance(tensor, WholeView):
        tensor._source.refresh(operation)
        return _without_class(tensor)
    return tensor


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=tensor.dtype, device=tensor.device)


def _as_whole(value: Any) -> Any:
    if type(value) is DTensor:
        # patch: whole tensors
        value.__class__ = WholeDTensor
    return value


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _versions(sharded: DTensor) -> list[int]:
    """Return version counters: of the DTensor, and of its shard, which optimizers write to directly."""
    each: list[torch.Tensor] = [sharded, local_shard(sharded)]
    return [0 if tensor.is_inference() else tensor_version(tensor) for tensor in each]
