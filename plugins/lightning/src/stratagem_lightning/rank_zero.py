"""Sets the rank that libraries around Lightning read, as importing Lightning does.

torchmetrics, and programs written from Lightning's templates, use `rank_zero_only` of lightning_utilities. It raises
an error until `rank_zero_only.rank` is set. Lightning sets it on import, and again in each worker.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Any

from stratagem_trainer.rank_zero import rank_zero_only

_LOG = logging.getLogger("stratagem")


def show_rank(rank: int | None = None) -> None:
    """Set `rank_zero_only.rank` of lightning_utilities, if that package is installed.

    Args:
        rank: of this process. None reads it from the process group or a launcher's variables, unless it is set
          already.
    """
    if find_spec("lightning_utilities") is None:
        return
    from lightning_utilities.core.rank_zero import rank_zero_only as theirs

    shown: Any = theirs
    if rank is not None or getattr(shown, "rank", None) is None:
        shown.rank = rank_zero_only.rank if rank is None else rank


def rank_prefixed_message(message: str, rank: int | None) -> str:
    """Return the message with the rank in front, if there is one."""
    return message if rank is None else f"[rank: {rank}] {message}"


class WarningCache(set[str]):
    """Messages that have been logged or warned about. Each is shown once, on rank 0."""

    def warn(self, message: str, stacklevel: int = 5, **how: Any) -> None:
        """Warn, unless this message was shown before."""
        if self._is_new(message):
            from stratagem_trainer.rank_zero import rank_zero_warn

            rank_zero_warn(message, stacklevel=stacklevel, **how)

    def deprecation(self, message: str, stacklevel: int = 6, **how: Any) -> None:
        """Warn about a deprecation, unless this message was shown before."""
        self.warn(message, stacklevel, category=DeprecationWarning, **how)

    def info(self, message: str, stacklevel: int = 5, **how: Any) -> None:
        """Log, unless this message was shown before."""
        if self._is_new(message) and rank_zero_only.rank == 0:
            _LOG.info(message, stacklevel=stacklevel, **how)

    def _is_new(self, message: str) -> bool:
        is_new = message not in self
        self.add(message)
        return is_new
