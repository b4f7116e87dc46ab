"""Make loggers by their names in the catalogue of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem.errors import ConfigError
from stratagem.sdk.catalogue import load_catalogue
from stratagem_trainer.loggers.base import Logger


def checked_loggers(given: Any) -> bool | Sequence[Logger]:
    """Return True, False, or a list of loggers. Those that are given by name, such as "wandb", are made.

    Raises:
        ConfigError, UsageError: the value is something else, no logger has the name, or its library is missing.
    """
    if given is None or isinstance(given, bool):
        return given is not False
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    return [_logger(each) for each in (given if isinstance(given, Sequence) else [given])]


def _logger(given: Any) -> Logger:
    made = load_catalogue().find("logger", given).load()() if isinstance(given, str) else given
    if not isinstance(made, Logger):
        raise ConfigError(
            f"logger has a {type(made).__name__}: pass True, False, names of loggers, or objects of classes that "
            "derive from stratagem_trainer.loggers.Logger"
        )
    return made
