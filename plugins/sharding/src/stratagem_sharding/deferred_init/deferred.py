"""Deferred initialization: construct a module without memory, and materialize its tensors later, a few at a time.

While a module is constructed on the "meta" device, every operation on its tensors is recorded. An operation that
draws random numbers is recorded with the generator's state. Replaying the operations that led to one tensor gives
exactly the values that construction on the CPU would have given. This holds whatever constructors do: initialisation
after construction, tied parameters, computed buffers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from stratagem_sharding.torch_private import (
    TorchDispatchMode,
    declared_arguments,
    memory_number,
    replaced_initializers,
    tree_flatten,
    tree_map,
)

LITERALS = (torch.tensor, torch.as_tensor, torch.asarray)
"""Factories that take their values from Python. They run at once: on "meta" their values would be lost."""


@dataclass(frozen=True)
class _Ref:
    """A tensor as a view of numbered memory."""

    memory: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Operation:
    function: Any
    args: Any
    kwargs: Any
    results: tuple[_Ref | None, ...]
    """The operation's output tensors; None for an output in the memory of an input."""
    reads: frozenset[int]
    writes: frozenset[int]
    generator: torch.Generator | None
    generator_state: torch.Tensor | None


class Construction(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Records the operations on meta tensors while it is active; enter it by `recorded`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._operations: list[_Operation] = []
        self._known: set[int] = set()
        # Freed memory could get the number of other memory: keep all tensors alive.
        self._alive: list[torch.Tensor] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Create tensors on "meta" and record the operations on them. A context manager for the construction."""
        with warnings.catch_warnings():
            # Torch warns that load_state_dict has no effect on "meta", but here it is recorded and replayed.
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter", UserWarning)
            with torch.device("meta"), _Literals(), replaced_initializers(self._recording), self:
                yield

    def fill_attributes(self, root: nn.Module) -> None:
        """Materialize tensor attributes that are neither parameters nor buffers, in lists and dicts too."""
        # A list may contain a parameter itself: replacing it by a copy would break the identity.
        own = {id(tensor) for tensor in (*root.parameters(), *root.buffers())}
        for module, name, value in list(_with_meta(root)):
            filled = tree_map(lambda each: each if id(each) in own else self._filled(each), value)
            setattr(module, name, filled)

    def made_some_of(self, root: nn.Module) -> bool:
        """Whether this construction created any parameter, buffer or tensor attribute of `root`."""
        attributes = (each for _, _, value in _with_meta(root) for each in tree_flatten(value)[0])
        return any(self.knows(each) for each in (*root.parameters(), *root.buffers(), *attributes))

    def _recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record a function of torch.nn.init as one operation, since by itself it skips tensors on "meta"."""
        return partial(self._initialize, original)

    def _initialize(self, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if _is_meta(tensor):
            generator = kwargs.get("generator") or torch.default_generator
            state, memory = generator.get_state(), frozenset({memory_number(tensor)})
            original(_scratch(tensor), *args, **kwargs)
            given = (_ref(tensor), *args)
            self._operations.append(_Operation(original, given, kwargs, (), memory, memory, generator, state))
        else:
            original(tensor, *args, **kwargs)
        return tensor

    def _filled(self, value: Any) -> Any:
        return self.materialize([value])[0] if _is_meta(value) and self.knows(value) else value

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether this construction created `tensor`, so that `materialize` can compute its values."""
        return _is_meta(tensor) and memory_number(tensor) in self._known

    def materialize(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors on the CPU with the values that `tensors` would have, not requiring gradients.

        Tensors that share memory still share memory in the result. The state of random number generators is
        unchanged.
        """
        wanted = list(tensors)
        needed = {memory_number(tensor) for tensor in wanted}
        chosen = []
        for operation in reversed(self._operations):
            if needed & operation.writes:
                needed |= operation.reads
                chosen.append(operation)
        memories: dict[int, torch.UntypedStorage] = {}
        with torch.no_grad():
            for operation in reversed(chosen):
                _repeat(operation, memories)
            return [_real(_ref(tensor), memories) for tensor in wanted]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_flatten((args, kwargs))[0] if _is_meta(each)]
        generator, state = _generator_of(func, kwargs)
        results = func(*args, **kwargs)
        made = [each for each in tree_flatten(results)[0] if _is_meta(each)]
        if not given and not made:
            return results
        if generator is not None:
            # Advance the generator as on the CPU, so that later random numbers are the same too.
            func(*tree_map(_scratch, args), **tree_map(_scratch, kwargs))
        self._write_down(func, args, kwargs, given, made, generator, state)
        return results

    def _write_down(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        given: list[torch.Tensor],
        made: list[torch.Tensor],
        generator: torch.Generator | None,
        state: torch.Tensor | None,
    ) -> None:
        reads = {memory_number(tensor) for tensor in given}
        new = [tensor for tensor in made if memory_number(tensor) not in reads]
        writes = {memory_number(tensor) for tensor in new}
        for argument, value in zip(declared_arguments(func), args):
            writes |= _written(argument, value)
        for argument in declared_arguments(func):
            writes |= _written(argument, kwargs.get(argument.name))
        if not writes:
            return  # a view
        self._alive += new
        self._known |= writes
        self._operations.append(
            _Operation(
                func,
                tree_map(_noted, args),
                tree_map(_noted, kwargs),
                tuple(None if memory_number(tensor) in reads else _ref(tensor) for tensor in made),
                frozenset(reads),
                frozenset(writes),
                generator,
                state,
            )
        )


class _Literals(TorchFunctionMode):
    """Creates tensors of Python values on the CPU, even if the default device is "meta"."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in LITERALS and kwargs.get("device") is None:
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


def _with_meta(root: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield module attributes, except parameters and buffers, that are or contain tensors on "meta"."""
    for module in root.modules():
        for name, value in vars(module).items():
            if not name.startswith("_") and any(_is_meta(each) for each in tree_flatten(value)[0]):
                yield module, name, value


def _is_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def _ref(tensor: torch.Tensor) -> _Ref:
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    return _Ref(memory_number(tensor), tensor.dtype, size, stride, int(tensor.storage_offset()))


def _noted(value: Any) -> Any:
    if _is_meta(value):
        return _ref(value)
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "meta" else value


def _scratch(value: Any) -> Any:
    if _is_meta(value):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu").zero_()
    return _noted(value)


def _written(argument: Any, value: Any) -> set[int]:
    if argument.alias_info is None or not argument.alias_info.is_write:
        return set()
    return {memory_number(each) for each in tree_flatten(value)[0] if _is_meta(each)}


def _generator_of(func: Any, kwargs: dict[str, Any]) -> tuple[torch.Generator | None, torch.Tensor | None]:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None, None
    generator = kwargs.get("generator") or torch.default_generator
    return generator, generator.get_state()


def _real(ref: _Ref, memories: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    tensor = torch.empty(0, dtype=ref.dtype, device="cpu")
    return tensor.set_(memories[ref.memory], ref.offset, ref.size, ref.stride)


def _repeat(operation: _Operation, memories: dict[int, torch.UntypedStorage]) -> None:
    def real(value: Any) -> Any:
        return _real(value, memories) if isinstance(value, _Ref) else value

    args, kwargs = tree_map(real, operation.args), tree_map(real, operation.kwargs)
    generator = operation.generator
    before = generator.get_state() if generator is not None else None
    if generator is not None and operation.generator_state is not None:
        generator.set_state(operation.generator_state)
    results = operation.function(*args, **kwargs)
    if generator is not None and before is not None:
        generator.set_state(before)
    tensors = [each for each in tree_flatten(results)[0] if isinstance(each, torch.Tensor)]
    for ref, tensor in zip(operation.results, tensors):
        if ref is None:
            continue
        if tuple(tensor.stride()) != ref.stride or tensor.storage_offset() != ref.offset:
            laid_out = torch.empty_strided(ref.size, ref.stride, dtype=ref.dtype, device="cpu")
            tensor = laid_out.copy_(tensor)
        memories[ref.memory] = tensor.untyped_storage()
