"""Stratagem's training loop: `Trainer` and `Module`, which `stratagem` exports, too.

Callbacks are in `stratagem_trainer.callbacks`, loggers in `stratagem_trainer.loggers`. Names are imported when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_trainer.data.combined_loader import CombinedLoader
    from stratagem_trainer.data.data_module import DataModule
    from stratagem_trainer.module import Module
    from stratagem_trainer.trainer import Trainer

_WHERE = {
    "CombinedLoader": "stratagem_trainer.data.combined_loader",
    "DataModule": "stratagem_trainer.data.data_module",
    "Module": "stratagem_trainer.module",
    "Trainer": "stratagem_trainer.trainer",
}

__all__ = ["CombinedLoader", "DataModule", "Module", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
