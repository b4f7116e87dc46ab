"""A batch in parts, for strategies that run several per step: splitting, merging, and what parts log."""

from __future__ import annotations

from stratagem.data.parts.current import part_of_batch, refuse_in_part
from stratagem.data.parts.logs import Logged, PartLogs
from stratagem.data.parts.splitting import merge, split

__all__ = ["Logged", "PartLogs", "merge", "part_of_batch", "refuse_in_part", "split"]
