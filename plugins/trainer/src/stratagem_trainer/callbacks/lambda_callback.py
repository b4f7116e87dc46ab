"""`LambdaCallback`: a callback of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem.errors import ConfigError, nearest
from stratagem_trainer.callbacks.base import Callback


class LambdaCallback(Callback):
    """Call functions at hooks, as `LambdaCallback(on_fit_start=lambda trainer, module: ...)`.

    Functions go to workers with the callback: under a strategy that starts processes other than by fork, they must
    be defined in a module.

    Args:
        hooks: name of a hook → function, with that hook's arguments.

    Raises:
        ConfigError: no hook has that name.
    """

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        from stratagem_trainer.stage.hooks import OF_CALLBACKS

        for name, function in hooks.items():
            if name not in OF_CALLBACKS:
                raise ConfigError(
                    f"LambdaCallback got {name}, which is no hook; {nearest(name, OF_CALLBACKS)}"
                )
            if function is not None:
                setattr(self, name, function)
