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
    from stratagem_trainer.rank_zero import rank_zero_debug, rank_zero_info, rank_zero_only, rank_zero_warn
    from stratagem_trainer.seeding import isolate_rng, seed_everything
    from stratagem_trainer.trainer import Trainer

_WHERE = {
    "CombinedLoader": "stratagem_trainer.data.combined_loader",
    "DataModule": "stratagem_trainer.data.data_module",
    "Module": "stratagem_trainer.module",
    "Trainer": "stratagem_trainer.trainer",
    "isolate_rng": "stratagem_trainer.seeding",
    "rank_zero_debug": "stratagem_trainer.rank_zero",
    "rank_zero_info": "stratagem_trainer.rank_zero",
    "rank_zero_only": "stratagem_trainer.rank_zero",
    "rank_zero_warn": "stratagem_trainer.rank_zero",
    "seed_everything": "stratagem_trainer.seeding",
}

__all__ = [
    "CombinedLoader",
    "DataModule",
    "Module",
    "Trainer",
    "isolate_rng",
    "rank_zero_debug",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "seed_everything",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
