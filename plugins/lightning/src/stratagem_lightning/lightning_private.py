"""What this plugin uses of Lightning that Lightning keeps private, with the reason.

plugins/lightning/tests/test_lightning_private.py fails when Lightning changes it.
"""

from __future__ import annotations

from typing import Any


def logs_hyperparameters(data_module: Any) -> bool:
    """Whether `save_hyperparameters(logger=...)` of a real LightningDataModule asked for them in loggers.

    It has no public name; Lightning's own trainer reads it. Absent means that loggers get them, as by default.
    """
    return bool(getattr(data_module, "_log_hyperparams", True))
