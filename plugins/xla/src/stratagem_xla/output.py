"""What torch_xla says: in the run's folder, and on the terminal only where someone asks for it."""

from __future__ import annotations

import logging
import os
import sys

from stratagem_xla.library import LOGGER

FORMAT = "[%(asctime)s] [%(levelname)s] %(message)s"
_CPP = {"debug": "0", "info": "0", "warning": "1"}
"""Level → what TF_CPP_MIN_LOG_LEVEL is for it: XLA's own messages can only be let through or not."""
_folder: str | None = None
"""Folder of the run whose records go there; torch_xla has one logger per process."""


def before_import(log_level: str | None, debug: bool) -> None:
    """Set the variables that torch_xla reads when it is imported, unless the user has."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _CPP.get(log_level or "", "2"))
    if debug:
        os.environ.setdefault("PT_XLA_DEBUG_LEVEL", "2")


def direct(run_dir: str | None, log_level: str | None, debug: bool) -> None:
    """Write torch_xla's records to `run_dir`/xla.log from now on, and show those of `log_level` and above.

    Args:
        run_dir: the run's folder; None keeps nothing.
        log_level: as "info"; None shows errors alone.
        debug: XLA's own analysis goes to `run_dir`/xla-debug.txt; read once per process.
    """
    global _folder
    stop()
    _folder = run_dir
    shown = logging.StreamHandler(sys.stderr)
    shown.setLevel((log_level or "error").upper())
    handlers: list[logging.Handler] = [shown]
    if run_dir is not None:
        os.makedirs(run_dir, exist_ok=True)
        handlers.append(logging.FileHandler(os.path.join(run_dir, "xla.log"), encoding="utf-8", delay=True))
        if debug:
            os.environ.setdefault("PT_XLA_DEBUG_FILE", os.path.join(run_dir, "xla-debug.txt"))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG if log_level == "debug" else logging.INFO)
    LOGGER.propagate = False


def stop(report: bool = False) -> None:
    """Close the run's file.

    Args:
        report: write what was compiled, transferred and waited for to xla-metrics.txt in the run's folder.
    """
    global _folder
    if report and _folder is not None and os.path.isdir(_folder):
        import torch_xla.debug.metrics as met

        with open(os.path.join(_folder, "xla-metrics.txt"), "w", encoding="utf-8") as file:
            file.write(met.metrics_report())
    _folder = None
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()
