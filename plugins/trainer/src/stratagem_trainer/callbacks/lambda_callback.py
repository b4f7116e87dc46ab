"""`LambdaCallback`: a callback made from functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem.errors import ConfigError, nearest
from stratagem_trainer.callbacks.base import Callback


class LambdaCallback(Callback):
    """Call functions in hooks: `LambdaCallback(on_fit_start=lambda trainer, module: ...)`.

    The callback is pickled for workers, unless the strategy forks them. Then the functions must be defined at the top
    level of a module.

    Args:
        hooks: name of a hook → function with the hook's arguments.

    Raises:
        ConfigError: a name isn't that of a hook.
    """

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        from stratagem_trainer.stage.hooks import OF_CALLBACKS

        for name, function in hooks.items():
            if name not in OF_CALLBACKS:
                raise ConfigError(
                    f"LambdaCallback got {name}, which is not a hook; {nearest(name, OF_CALLBACKS)}"
                )
            if function is not None:
                setattr(self, name, function)
