"""The private parts of Lightning that this plugin uses, with the reasons.

plugins/lightning/tests/test_lightning_private.py fails when Lightning changes one.
"""

from __future__ import annotations

from typing import Any


def logs_hyperparameters(data_module: Any) -> bool:
    """Whether `save_hyperparameters(logger=...)` of a real LightningDataModule sends them to loggers.

    Only this private name has the value; Lightning's own trainer reads it. If it is absent, loggers get them: that is
    Lightning's default.
    """
    return bool(getattr(data_module, "_log_hyperparams", True))
