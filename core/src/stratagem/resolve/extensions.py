"""Loads the extensions of a run: objects with hook wrappers, or names of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from stratagem.errors import CombinationError, ConfigError, UnknownNameError, short
from stratagem.installed.catalogue import Catalogue
from stratagem.installed.entry_points import normalise
from stratagem.plugin.hookspecs import RUN_HOOKS
from stratagem.plugin.sealing import has_hooks
from stratagem.resolve.resolved import Resolved, resolved_from


def load_extension(catalogue: Catalogue, extension: Any) -> Resolved:
    """Return an extension: an object, or the one named "NAME", "DISTRIBUTION:NAME" or "PACKAGE.MODULE:CLASS"."""
    if not isinstance(extension, str):
        _refuse_component(extension)
        name = f"{type(extension).__module__}.{type(extension).__qualname__}"
        return Resolved("extension", name, extension)
    if ":" not in extension or _is_offered(catalogue, extension):
        component = catalogue.find("extension", extension)
        return resolved_from(component, component.load()(**component.options))
    module, _, attribute = extension.partition(":")
    try:
        made = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # what is imported may raise anything
        raise UnknownNameError(
            f"extension {short(extension)} can't be imported: {type(error).__name__}: {error}"
        ) from error
    if not has_hooks(made):
        raise CombinationError(
            f"{extension!r} is not an extension: {attribute} implements none of the hooks {', '.join(RUN_HOOKS)}; "
            "name a class with methods that are marked @hookimpl"
        )
    try:
        value = made() if isinstance(made, type) else made
    except Exception as error:
        raise CombinationError(
            f"extension {extension!r} can't be made without arguments: {type(error).__name__}: {error}; name an "
            "object of your own instead, as MODULE:OBJECT"
        ) from error
    return Resolved("extension", extension, value)


def _refuse_component(given: Any) -> None:
    """Refuse a component that has its own argument, such as a strategy.

    Raises:
        ConfigError: names the argument.
    """
    cls = given if isinstance(given, type) else type(given)
    for base, argument in _arguments().items():
        if issubclass(cls, base) and (not has_hooks(given) or base.__name__ == "Strategy"):
            raise ConfigError(
                f"plugins takes objects with hooks and names of extensions, not {short(given)}: "
                f"give that as {argument}"
            )


def _arguments() -> dict[type, str]:
    from stratagem.accelerators.base import Accelerator
    from stratagem.checkpoint.base import Checkpointer
    from stratagem.environments.base import Environment
    from stratagem.precision.base import Precision
    from stratagem.strategies.base import Strategy

    return {
        Strategy: "strategy=",
        Accelerator: "accelerator=",
        Precision: "precision=",
        Environment: "environment=",
        Checkpointer: "the strategy's checkpoint_io=",
    }


def _is_offered(catalogue: Catalogue, extension: str) -> bool:
    distribution, _, name = extension.partition(":")
    return any(
        name in component.names() and component.origin.distribution == normalise(distribution)
        for component in catalogue.of_kind("extension")
    )
