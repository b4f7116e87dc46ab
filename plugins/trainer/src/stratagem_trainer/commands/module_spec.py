"""`ModuleSpec` and `DataSpec`: make the user's module and data module in each worker, from a target and settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from stratagem_cli.typed import defaults_of, parameters_of, typed

import stratagem_trainer
from stratagem.errors import ConfigError, TargetError
from stratagem_trainer.commands.scheme_target import AnyTarget

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class ModuleSpec:
    """A picklable function that makes the module."""

    target: AnyTarget
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the section, as YAML values or as `Text`."""

    section: ClassVar[str] = "model"
    base: ClassVar[str] = "Module"
    """Name in stratagem of the class whose objects it makes."""

    def __call__(self) -> Any:
        """Import the target, and make the object. Not collective.

        Raises:
            TargetError: the target can't be imported, or isn't such a class or a function that returns an object of
            one.
            ConfigError: a setting is unknown, of the wrong type, or missing.
        """
        make = self.target.load(self.base)
        of_text = self.target.arguments(make)
        self._refuse_given_twice(of_text)
        values = typed(make, self.settings, self.section) if self.settings else {}
        self._refuse_missing(make, of_text)
        values = {**of_text, **values}
        try:
            made = make(**values)
        except TypeError as error:
            for key in values:
                if f"unexpected keyword argument {key!r}" in str(error):
                    raise ConfigError(
                        f"{make.__qualname__} has no setting '{self.section}.{key}': {error}"
                    ) from error
            raise
        if not isinstance(made, getattr(stratagem_trainer, self.base)):
            raise TargetError(
                f"TARGET {str(self.target)!r} returned a {type(made).__name__}, not a stratagem.{self.base}"
            )
        return made

    def resolved(self) -> dict[str, Any]:
        """Return all settings of the constructor with their types, including defaults."""
        make = self.target.load(self.base)
        self._refuse_given_twice(self.target.arguments(make))
        return {**defaults_of(make), **typed(make, self.settings, self.section)}

    def _refuse_given_twice(self, of_text: Mapping[str, Any]) -> None:
        for name in of_text:
            if name in self.settings:
                raise ConfigError(
                    f"TARGET {self.target} sets {self.section}.{name} already: remove that setting"
                )

    def _refuse_missing(self, make: Callable[..., Any], of_text: Mapping[str, Any]) -> None:
        missing = [
            name
            for name, parameter in parameters_of(make).items()
            if parameter.default is inspect.Parameter.empty and name not in {**self.settings, **of_text}
        ]
        if missing:
            raise ConfigError(
                f"{make.__qualname__} needs {', '.join(missing)}: pass --set {self.section}.{missing[0]}=VALUE"
            )


@dataclass(frozen=True)
class DataSpec(ModuleSpec):
    """A picklable function that makes the data module, with the settings of the section `data`."""

    section: ClassVar[str] = "data"
    base: ClassVar[str] = "DataModule"
