"""Methods of a module, other than `forward`, that your own training loop calls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from stratagem.errors import ConfigError


class MethodModule(nn.Module):
    """The module that a strategy wraps if several methods train. Its forward calls the method named first."""

    def __init__(self, module: nn.Module, methods: Collection[str]) -> None:
        super().__init__()
        self.module = module
        is_list = isinstance(methods, Collection) and not isinstance(methods, (str, bytes))
        known = is_list and all(
            isinstance(each, str) and callable(getattr(module, each, None)) for each in methods
        )
        if not known:
            raise ConfigError(
                f"forward_methods={methods!r} isn't a list of names of methods of {type(module).__qualname__}"
            )

    def forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return (self.module if method == "forward" else getattr(self.module, method))(*args, **kwargs)


def without_layers(method: Callable[..., Any], advice: str) -> Callable[..., Any]:
    """Wrap a `method` so that it raises ConfigError if it calls its module, or layers of it that have parameters."""
    module: nn.Module = method.__self__  # type: ignore[attr-defined]  # a bound method, which Callable doesn't say

    def refuse(layer: nn.Module, args: Any) -> None:
        if any(layer is own for own in module.modules()) and next(layer.parameters(), None) is not None:
            raise ConfigError(
                f"{method.__qualname__} calls layers, which the strategy and the precision "
                f"wouldn't see: {advice}"
            )

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        handle = register_module_forward_pre_hook(refuse)
        try:
            return method(*args, **kwargs)
        finally:
            handle.remove()

    return called
