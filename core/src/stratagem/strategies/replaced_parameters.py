"""Makes parameters that `setup` has replaced raise an error when the user's code uses them, as from an old list.

They are no longer trained, and have no gradients. Without an error, a loop that clips, averages or clamps them would
silently do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from stratagem.errors import ShardedUseError
from stratagem.strategies.torch_private import operation_name, without_subclass_functions

_METHODS = (
    "__repr__ __hash__ __len__ size dim ndimension numel nelement element_size is_floating_point is_complex "
    "get_device stride"
)
_ATTRIBUTES = (
    "shape ndim dtype device layout requires_grad is_leaf is_sparse is_meta is_cuda is_cpu itemsize nbytes "
    "name"
)
_ALLOWED = frozenset([*_METHODS.split(), *(f"get {each}" for each in _ATTRIBUTES.split())])
"""Operations that give the same result for the new parameter, or that do no harm."""


class ReplacedParameter(nn.Parameter):
    """A parameter that was replaced in its module. Computing with it raises an error, which says what to use."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation_name(func) in _ALLOWED:
            with without_subclass_functions():
                return func(*args, **(kwargs or {}))
        raise ShardedUseError(
            f"a parameter of shape {_shape_of(args)} was used that your code had before setup(), which has put "
            "another in its place: make lists of parameters after setup(), or take them from the module again, as by "
            "module.parameters()"
        )


def refuse_use(parameters: Iterable[nn.Parameter]) -> None:
    """Make computing with these parameters raise an error."""
    for parameter in parameters:
        if type(parameter) is nn.Parameter:
            # patch: replaced parameters
            parameter.__class__ = ReplacedParameter


def _shape_of(args: Any) -> tuple[int, ...]:
    values = list(args)
    while values:
        value = values.pop(0)
        if isinstance(value, ReplacedParameter):
            return tuple(value.shape)
        if isinstance(value, (list, tuple)):
            values.extend(value)
    return ()
