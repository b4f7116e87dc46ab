"""Stratagem's training loop: `Trainer` and `Module`, which `stratagem` exports, too.

Callbacks are in `stratagem_trainer.callbacks`, loggers in `stratagem_trainer.loggers`. Names are imported when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_trainer.data.combined_loader import CombinedLoader
    from stratagem_trainer.data.data_module import DataModule
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.rank_zero import rank_zero_debug, rank_zero_info, rank_zero_only, rank_zero_warn
    from stratagem_trainer.stage.seeding import isolate_rng, seed_everything
    from stratagem_trainer.trainer import Trainer

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

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".data.combined_loader": "CombinedLoader",
            ".data.data_module": "DataModule",
            ".module.module": "Module",
            ".rank_zero": "rank_zero_debug rank_zero_info rank_zero_only rank_zero_warn",
            ".stage.seeding": "isolate_rng seed_everything",
            ".trainer": "Trainer",
        },
    )
