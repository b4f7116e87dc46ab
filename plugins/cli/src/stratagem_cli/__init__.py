"""The command line of Stratagem; `options` gives its flags to a command of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_cli.flags import options

__all__ = ["options"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratagem_cli.flags import options

    return options


def __dir__() -> list[str]:
    return sorted(__all__)
