"""A batch in parts, for strategies that run several per step: splitting, merging, and what parts log."""

from __future__ import annotations

from stratagem.parts.logs import Logged, PartLogs
from stratagem.parts.splitting import merge, split

__all__ = ["Logged", "PartLogs", "merge", "split"]
