"""`FabricModule`, which `Fabric.setup` returns for a module."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from stratagem.errors import ConfigError
from stratagem.sdk.loops import PreparedModule

if TYPE_CHECKING:
    from stratagem.strategies.prepared import Prepared


class FabricModule(PreparedModule):
    """A wrapper that sends calls of the module, and of marked methods, through strategy and precision.

    All other attributes are those of the user's module.

    Args:
        prepared: the strategy's prepared model.
        methods: names of the methods that are marked at first, including "forward".
        is_direct: whether strategy and precision do no more than call the user's module.
    """

    def __init__(self, prepared: Prepared, methods: set[str], is_direct: bool) -> None:
        self.__dict__.update(marked=methods, is_direct=is_direct)
        super().__init__(prepared, methods, "call mark_forward_method({!r}) first, or call the module itself")

    @property
    def module(self) -> nn.Module:
        """The user's module."""
        return self.original_module

    def mark_forward_method(self, method: MethodType | str) -> None:
        """Send calls of a method through strategy and precision, like calls of the module itself.

        Raises:
            ConfigError: the module has no such method.
        """
        name = method if isinstance(method, str) else method.__name__
        if name == "forward" or not isinstance(getattr(self.original_module, name, None), MethodType):
            raise ConfigError(
                f"mark_forward_method got {name!r}: give the name of a method of "
                f"{type(self.original_module).__qualname__} other than forward"
            )
        self.marked.add(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_module(*args, **kwargs) if self.is_direct else super().forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if self.__dict__["is_direct"] and name != "original_module":
            return getattr(self.original_module, name)
        return super().__getattr__(name)
