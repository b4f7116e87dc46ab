"""`ModuleSpec`: makes the user's module, in each worker, from the target and its settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stratagem_cli.typed import defaults_of, parameters_of, typed

from stratagem.errors import ConfigError, TargetError
from stratagem_trainer.commands.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem_trainer.module import Module


@dataclass(frozen=True)
class ModuleSpec:
    """A picklable function without arguments that returns the module."""

    target: Target
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the section `model`: as written in YAML, or `Text`."""

    def __call__(self) -> Module:
        """Import the target and make the module. Not collective.

        Raises:
            TargetError: it can't be imported, or isn't a module's class nor a function that returns one.
            ConfigError: a setting that its constructor doesn't have, of the wrong type, or missing.
        """
        from stratagem_trainer.module import Module

        make = self.target.load()
        values = typed(make, self.settings, "model") if self.settings else {}
        self._refuse_missing(make)
        try:
            module = make(**values)
        except TypeError as error:
            for key in values:
                if f"unexpected keyword argument {key!r}" in str(error):
                    raise ConfigError(f"{make.__qualname__} has no setting 'model.{key}': {error}") from error
            raise
        if not isinstance(module, Module):
            raise TargetError(
                f"TARGET {str(self.target)!r} returned a {type(module).__name__}, not a stratagem.Module"
            )
        return module

    def resolved(self) -> dict[str, Any]:
        """All settings of the module, typed, defaults included."""
        make = self.target.load()
        return {**defaults_of(make), **typed(make, self.settings, "model")}

    def _refuse_missing(self, make: Callable[..., Any]) -> None:
        missing = [
            name
            for name, parameter in parameters_of(make).items()
            if parameter.default is inspect.Parameter.empty and name not in self.settings
        ]
        if missing:
            raise ConfigError(
                f"{make.__qualname__} needs {', '.join(missing)}: give --set model.{missing[0]}=VALUE"
            )
