"""`HeldGradient`: a placeholder for a gradient that this rank doesn't have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from stratagem.errors import GradientError
from stratagem_sharding.torch_private import GET_VERSION

Held = TypeVar("Held", bound="HeldGradient")


class HeldGradient(torch.Tensor):
    """Has a parameter's shape, dtype and device, but no values; refuses operations that read or change values.

    Without it `p.grad` would be None: torch's clipping, or a norm over existing gradients, would silently skip it,
    and other loops would fail with an AttributeError. Subclasses set `sentence`.
    """

    sentence: ClassVar[str]
    """The error message: what the user's code did, and what to do instead."""
    allowed: ClassVar[frozenset[Any]] = frozenset()
    """Torch functions that run, since they need no values."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in cls.allowed:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch has none
        raise GradientError(cls.sentence)

    @classmethod
    def like(cls: type[Held], parameter: torch.Tensor, shape: Sequence[int] | None = None) -> Held:
        """Return a placeholder for the gradient of `parameter`. It takes the memory of one element."""
        shape = parameter.shape if shape is None else shape
        return parameter.data.new_empty(()).expand(shape).as_subclass(cls)


class ZeroableGradient(HeldGradient):
    """A placeholder that a user's code may zero or set to None; its shape, dtype and device can be read."""

    allowed = frozenset(
        (
            *(getattr(torch.Tensor, name) for name in ("dim", "element_size", "numel", "size")),
            *(
                getattr(torch.Tensor, name).__get__
                for name in (
                    *("device", "dtype", "grad_fn", "is_leaf", "is_sparse", "layout", "ndim"),
                    *("requires_grad", "shape"),
                )
            ),
            GET_VERSION,
        )
    )
    _UNCHANGING: ClassVar = frozenset(
        getattr(torch.Tensor, name) for name in ("detach", "detach_", "requires_grad_", "zero_")
    )

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return args[0] if func in cls._UNCHANGING else super().__torch_function__(func, types, args, kwargs)
