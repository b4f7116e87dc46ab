"""`model_registry`: register the best checkpoint of a fit with loggers that have a model registry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stratagem.errors import ConfigError
from stratagem_trainer.loggers.base import Logger

_METHOD = "register_model"
"""Method of loggers with a registry. It is called on rank 0 with the name and a checkpoint's path."""


def refuse_without_registry(name: str | None, loggers: bool | Sequence[Logger]) -> None:
    """Refuse `model_registry` if no logger has a registry.

    Raises:
        ConfigError: says what such a logger needs.
    """
    if name is None:
        return
    if isinstance(loggers, bool) or not any(hasattr(logger, _METHOD) for logger in loggers):
        raise ConfigError(
            f"model_registry={name!r} needs a logger with a registry, which has a method {_METHOD}(name, path): pass "
            "one, or leave out model_registry and find the checkpoints in the run's folder"
        )


def register(name: str | None, loggers: Iterable[Logger], checkpoint: Any) -> None:
    """Pass the best checkpoint, or the last one, to the loggers with a registry.

    Args:
        name: name in the registry; None registers nothing.
        loggers: the open loggers of rank 0.
        checkpoint: the fit's `ModelCheckpoint`, or None.
    """
    path = "" if checkpoint is None else checkpoint.best_model_path or checkpoint.last_model_path
    if name is None or not path:
        return
    for logger in loggers:
        if hasattr(logger, _METHOD):
            getattr(logger, _METHOD)(name, path)
