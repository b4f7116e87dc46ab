"""`rank_zero_only` and related functions, for what only one process of a run should do."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_LOG = logging.getLogger("stratagem")


class RankZeroOnly:
    """The decorator `rank_zero_only`.

    Attributes:
        rank: rank of this process: the value that was set, or else the rank in torch's process group, or else the
            value of a launcher's environment variable, or else 0.
    """

    def __init__(self) -> None:
        self._rank: int | None = None

    @property
    def rank(self) -> int:
        """Rank of this process."""
        if self._rank is not None:
            return self._rank
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        found = (os.environ.get(name, "") for name in _VARIABLES)
        return next((int(value) for value in found if value.isdigit()), 0)

    @rank.setter
    def rank(self, value: int | None) -> None:
        self._rank = value

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]: ...

    @overload
    def __call__(self, function: Callable[P, R], default: D) -> Callable[P, R | D]: ...

    def __call__(self, function: Callable[P, R], default: Any = None) -> Callable[P, Any]:
        """Return a function that calls `function` on rank 0, and returns `default` on other ranks. Not collective."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return function(*args, **kwargs) if self.rank == 0 else default

        return call


rank_zero_only = RankZeroOnly()
"""Decorates a function that should run only on rank 0."""


@rank_zero_only
def rank_zero_info(message: object, *args: object, **how: Any) -> None:
    """Log an info message to the logger "stratagem" on rank 0."""
    _LOG.info(message, *args, **how)


@rank_zero_only
def rank_zero_debug(message: object, *args: object, **how: Any) -> None:
    """Log a debug message to the logger "stratagem" on rank 0."""
    _LOG.debug(message, *args, **how)


@rank_zero_only
def rank_zero_warn(message: str, stacklevel: int = 4, category: type[Warning] = UserWarning) -> None:
    """Warn on rank 0. The default `stacklevel` shows the caller's line."""
    warnings.warn(message, category, stacklevel=stacklevel - 1)
