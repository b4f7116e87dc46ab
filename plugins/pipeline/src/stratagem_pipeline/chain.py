"""A pipeline of an `nn.ModuleList`, whose layers the user's module calls itself, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from stratagem_sharding.class_names import class_name
from torch import nn

from stratagem import ConfigError
from stratagem.errors import DataError
from stratagem.sdk.torch_private import tensor_version
from stratagem_pipeline.forward_interceptor import ForwardInterceptor
from stratagem_pipeline.nests import Structure, flattened, rebuilt
from stratagem_pipeline.torch_private import forward_hooks, own_call, set_own_call

_ACTIVATIONS = -1
"""The number of the tensor that a layer gets from the layer before it. Further tensors are numbered from 0."""

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → integer dtype for sending a tensor without gradient.

Torch's stages send back a gradient for every floating-point tensor."""

_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class _Numbered:
    """Placeholder for a tensor in the arguments of a layer."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbered) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class LayerCalls:
    """The arguments with which a step calls each layer. It is sent along with the tensors.

    Args:
        calls: for each layer, the structure of its positional and keyword arguments, and the values in it.
        dtypes: for each further tensor, its dtype if it is sent as integers; else None.
        enters_twice: whether a further tensor shares memory with the activations of the first layer.
    """

    # Not a dataclass: `flattened` opens dataclasses, as it does in a user's batch.
    def __init__(
        self,
        calls: Sequence[tuple[Structure, tuple[Any, ...]]],
        dtypes: Sequence[torch.dtype | None],
        enters_twice: bool,
    ) -> None:
        self._calls, self._dtypes, self.enters_twice = tuple(calls), tuple(dtypes), enters_twice

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerCalls) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(self._dtypes)

    def arguments(
        self, index: int, activations: torch.Tensor, further: Sequence[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments of layer `index`."""
        structure, leaves = self._calls[index]
        given: tuple[tuple[Any, ...], dict[str, Any]] = rebuilt(
            structure,
            [
                self._value(leaf, activations, further) if isinstance(leaf, _Numbered) else leaf
                for leaf in leaves
            ],
        )
        return given

    def _value(
        self, leaf: _Numbered, activations: torch.Tensor, further: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        if leaf.number == _ACTIVATIONS:
            return activations
        dtype, tensor = self._dtypes[leaf.number], further[leaf.number]
        return tensor if dtype is None else tensor.view(dtype)


class Chain(ForwardInterceptor):
    """Intercepts a step's calls of the layers of a list.

    Each layer except the last returns a placeholder for its output, which the step may only pass to the next layer.
    The input of the pipeline is a tuple: the first layer's activations, the further tensors that layers are called
    with, and the `LayerCalls`.

    Args:
        layers: in the order in which they are called.
        name: of the list in the user's module, for errors.

    Raises:
        ConfigError: a layer is there twice, or has forward hooks.
    """

    every_tensor_has_rows = False

    def __init__(self, layers: nn.ModuleList, name: str) -> None:
        super().__init__(layers, name)
        self._layers = list(layers)
        self._numbers = {layer: number for number, layer in enumerate(self._layers)}
        if len(self._numbers) < len(self._layers):
            raise ConfigError(
                f"{name} has a layer twice, and each layer of a pipeline runs once: choose ddp or fsdp"
            )
        for number, layer in enumerate(layers):
            hooked = next((each for _, each in layer.named_modules() if forward_hooks(each)), None)
            if hooked is not None:
                raise ConfigError(
                    f"{class_name(hooked)} in {name}[{number}] has forward hooks, and in a pipeline no step has "
                    "all layers on its rank: register them in on_train_start, where a rank needs those of its layers "
                    "alone, or choose ddp or fsdp"
                )
        self._first_names = [next(iter(signature(layer.forward).parameters), "") for layer in self._layers]

    @contextmanager
    def patched(self, forward: Callable[..., Any]) -> Iterator[None]:
        """While active, calls of the layers are recorded; the call of the last one calls `forward` once."""
        own = [own_call(layer) for layer in self._layers]

        def run(value: Any) -> Any:
            with _calls(self._layers, own):  # an evaluation runs layers within the step
                return forward(value)

        calling = _Calling(self.name, self._first_names, run)
        # Replace the calls, not the forwards: otherwise hooks would be called with placeholders.
        with _calls(self._layers, [calling.of(number) for number in range(len(self._layers))]):
            yield
        calling.check_end()

    def call_layer(self, layer: nn.Module, value: Any) -> Any:
        """Call one layer with its arguments.

        Args:
            layer: one of the list.
            value: the layer's input: activations, further tensors, `LayerCalls`.

        Returns:
            The input of the next layer; for the last layer, its output.

        Raises:
            DataError: the layer returned something else than a tensor, or changed its arguments.
        """
        activations, further, calls = value
        number = self._numbers[layer]
        args, kwargs = calls.arguments(number, activations, further)
        version, given = tensor_version(activations), flattened((args, kwargs))
        output = layer(*args, **kwargs)
        if number == 0 and calls.enters_twice and tensor_version(activations) != version:
            raise DataError(
                f"{self.name}[0] changes its activations in place, which other layers are called with, too, and in a "
                "pipeline these have what they were before: let it return others"
            )
        _refuse_changed(given, flattened((args, kwargs)), f"{self.name}[{number}]")
        if not isinstance(output, torch.Tensor):
            raise DataError(
                f"{self.name}[{number}] returns a {type(output).__name__}, and layers of an nn.ModuleList return one "
                "tensor in a pipeline: let it do so, or put the layers into an nn.Sequential"
            )
        return output if number + 1 == len(self._layers) else (output, further, calls)


def _refuse_changed(
    before: tuple[Structure, list[Any]], after: tuple[Structure, list[Any]], name: str
) -> None:
    """Refuse changes of a layer to lists and dicts in its arguments: layers on other ranks don't see them.

    Raises:
        DataError: names the layer.
    """
    if before[0] != after[0] or any(new is not old for old, new in zip(before[1], after[1])):
        raise DataError(
            f"{name} changes a list or a dict that it is called with, and in a pipeline other layers have their own: "
            "let layers hand on what they compute in the tensor that they return, or choose ddp or fsdp"
        )


@contextmanager
def _calls(layers: Sequence[nn.Module], calls: Sequence[Callable[..., Any] | None]) -> Iterator[None]:
    """While active, replace the calls of layers by `calls`; None calls the layer itself."""
    before = [own_call(layer) for layer in layers]
    _set_calls(layers, calls)
    try:
        yield
    finally:
        _set_calls(layers, before)


def _set_calls(layers: Sequence[nn.Module], calls: Sequence[Callable[..., Any] | None]) -> None:
    for layer, call in zip(layers, calls):
        set_own_call(layer, call)


class _Calling:
    """Records the calls of layers during one run of a step.

    Args:
        name: of the list of layers.
        first_names: for each layer, the name of its forward's first argument, which gets the activations.
        forward: takes the input of the first layer, returns the output of the last one.
    """

    def __init__(self, name: str, first_names: Sequence[str], forward: Callable[..., Any]) -> None:
        self._name, self._first_names, self._forward = name, first_names, forward
        self._calls: list[tuple[Structure, tuple[Any, ...]]] = []
        self._further: list[torch.Tensor] = []
        self._dtypes: list[torch.dtype | None] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []
        self._entered: torch.Tensor | None = None
        self._between: torch.Tensor | None = None

    def of(self, number: int) -> Callable[..., Any]:
        """Return the function that replaces calls of layer `number`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._called(number, args, kwargs)

        return call

    def check_end(self) -> None:
        """Refuse a step that called only some of the layers.

        Raises:
            DataError: says how many.
        """
        if self._calls:
            raise DataError(
                f"training_step called {len(self._calls)} of the {len(self._first_names)} layers of {self._name}, "
                "and a pipeline runs all of them in every step: choose ddp or fsdp for a model that leaves some out"
            )

    def _called(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if number != len(self._calls):
            raise DataError(
                f"training_step calls {self._name}[{number}] where {self._name}[{len(self._calls)}] is next, and a "
                "pipeline runs each layer once, in the order of the list: choose ddp or fsdp for another order"
            )
        activations = args[0] if args else kwargs.get(self._first_names[number])
        if number == 0:
            self._entered = self._tensor(activations)
        elif activations is not self._between:
            raise DataError(
                f"training_step calls {self._name}[{number}] with something else than what "
                f"{self._name}[{number - 1}] returned, and a pipeline hands the output of a layer to the next as it "
                "is: let a layer do what is between them, or choose ddp or fsdp"
            )
        structure, leaves = flattened((args, kwargs))
        self._calls.append((structure, tuple(self._described(leaf, activations, number) for leaf in leaves)))
        if len(self._calls) < len(self._first_names):
            assert self._entered is not None
            self._between = _Between.after(self._entered, f"{self._name}[{number}]")
            return self._between
        entered = _memory(self._entered)
        twice = entered is not None and any(_memory(each) == entered for each in self._kept)
        value = (self._entered, tuple(self._further), LayerCalls(self._calls, self._dtypes, twice))
        self._calls = []
        return self._forward(value)

    def _tensor(self, activations: Any) -> torch.Tensor:
        if isinstance(activations, torch.Tensor):
            return activations
        raise DataError(
            f"training_step calls {self._name}[0] with a {type(activations).__name__} first, and layers of an "
            "nn.ModuleList take a tensor first in a pipeline: let it do so, or put the layers into an nn.Sequential"
        )

    def _described(self, leaf: Any, activations: Any, number: int) -> Any:
        """Return the description of an argument that is sent in its place."""
        if leaf is activations:
            return _Numbered(_ACTIVATIONS)
        if isinstance(leaf, _Between):
            raise DataError(leaf.refusal())
        if isinstance(leaf, torch.Tensor):
            return _Numbered(self._number(leaf))
        if isinstance(leaf, _PLAIN):
            return leaf
        raise DataError(
            f"training_step calls {self._name}[{number}] with a {type(leaf).__name__}, and a pipeline sends tensors, "
            "numbers and strings to the ranks of its layers: call the model without it (with use_cache=False, if it "
            "is a cache of keys and values)"
        )

    def _number(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._further)
            integers = None if tensor.requires_grad else _AS_INTEGERS.get(tensor.element_size())
            if tensor.dim() == 0:
                raise DataError(
                    f"layers of {self._name} are called with a tensor without a dimension, and a pipeline joins "
                    "those of a batch's parts along the first: give a number, or a tensor of shape (1,)"
                )
            self._dtypes.append(None if integers is None else tensor.dtype)
            self._further.append(tensor if integers is None else tensor.view(integers))
            self._kept.append(tensor)  # keep it alive, so that no other tensor gets its id
        return self._numbers[id(tensor)]


def _memory(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor's memory; None if it has no memory of its own, as a DTensor."""
    is_plain = type(tensor) is torch.Tensor or isinstance(tensor, nn.Parameter)
    return tensor.untyped_storage().data_ptr() if is_plain and tensor is not None else None


class _Between(torch.Tensor):
    """Placeholder for the output of a layer on another rank. It has a shape; computing with it raises."""

    _layer = ""

    @staticmethod
    def after(entered: torch.Tensor, layer: str) -> _Between:
        """Return the placeholder for the output of `layer`, with shape and dtype of the first layer's input."""
        number = torch.empty((), dtype=entered.dtype, device=entered.device)
        made: _Between = number.expand(entered.shape).as_subclass(_Between)
        made._layer = layer
        return made

    def refusal(self) -> str:
        """Return the error message for a step that computes with the placeholder."""
        return (
            f"training_step computes with the output of {self._layer}, which only the next layer gets in a pipeline: "
            "let a layer do so, or choose ddp or fsdp"
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DESCRIBING:
            described = super().__torch_function__
            return described(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch has no types for it
        between = next(each for each in _leaves(args, kwargs) if isinstance(each, cls))
        raise DataError(between.refusal())


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Any]:
    return flattened((args, kwargs or {}))[1]


_DESCRIBING = frozenset(
    [
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.numel,
        torch.Tensor.__len__,
        torch.Tensor.is_floating_point,
        *(
            getattr(torch.Tensor, name).__get__
            for name in (
                "shape",
                "dtype",
                "device",
                "ndim",
                "layout",
                "requires_grad",
                "is_meta",
                "is_cuda",
                "is_cpu",
            )
        ),
    ]
)
"""Functions that a placeholder allows: their results are the same for any layer's output."""
