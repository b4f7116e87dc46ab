"""Writes the engine's log records to the run's folder, and to the terminal only from the level asked for.

Until the folder is known, records wait in memory.
"""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import sys
import warnings
from collections.abc import Iterator

LOGGERS = ("DeepSpeed", "deepspeed")
FORMAT = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d] %(message)s"
DEPRECATED = r"`torch\.distributed\.\w+` is deprecated"
"""Torch warns so at nearly every collective of the engine, which calls deprecated functions."""

_waiting = logging.handlers.MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL + 1)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Turn printed lines and warnings into log records, as while importing or compiling."""
    printed = io.StringIO()
    logger = logging.getLogger(LOGGERS[0])
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
            warnings.simplefilter("always")
            yield
    finally:
        _take_over()
        for line in printed.getvalue().splitlines():
            logger.info(line)
        for warning in warned:
            logger.info("%s: %s", warning.category.__name__, warning.message)


def direct(run_dir: str | None, rank: int, engine_level: int, terminal_level: str | None) -> None:
    """Write waiting and later records to `run_dir`/deepspeed-`rank`.log.

    Args:
        run_dir: the run's folder; None keeps nothing.
        rank: this process's global rank.
        engine_level: the lowest level that the engine's logger records, as logging.WARNING.
        terminal_level: the lowest level that also goes to standard error, as "info"; None for errors.
    """
    _take_over()
    shown = logging.StreamHandler(sys.stderr)
    wanted = logging.getLevelName((terminal_level or "error").upper())
    shown.setLevel(wanted)
    shown.setFormatter(logging.Formatter(FORMAT))
    handlers: list[logging.Handler] = [shown]
    if run_dir is not None:
        os.makedirs(run_dir, exist_ok=True)
        path = os.path.join(run_dir, f"deepspeed-{rank}.log")
        handlers.append(logging.FileHandler(path, encoding="utf-8", delay=True))
        handlers[-1].setFormatter(logging.Formatter(FORMAT))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(min(engine_level, wanted))
        for old in list(logger.handlers):
            logger.removeHandler(old)
            if old is not _waiting:
                old.close()
        for handler in handlers:
            logger.addHandler(handler)
    for record in _waiting.buffer:
        for handler in handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
    _waiting.buffer.clear()


def stop() -> None:
    """Close the run's file; later records wait in memory again."""
    for name in LOGGERS:
        for handler in list(logging.getLogger(name).handlers):
            logging.getLogger(name).removeHandler(handler)
            if handler is not _waiting:
                handler.close()
    _take_over()


def silence_deprecations() -> None:
    """Ignore torch's deprecation warnings about functions that the engine calls."""
    warnings.filterwarnings("ignore", DEPRECATED, FutureWarning)


def _take_over() -> None:
    """Remove the engine's own handlers, which write to standard output, from its loggers."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        ours = [each for each in logger.handlers if isinstance(each, logging.FileHandler) or each is _waiting]
        if ours:
            continue
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.addHandler(_waiting)
        logger.propagate = False
