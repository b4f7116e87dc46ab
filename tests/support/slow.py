"""A module that trains long enough to be interrupted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from small import Line


class Slow(Line):
    """Leaves its process id in `folder` at its first step, and takes its time."""

    def __init__(self, folder: str, pause_s: float = 0.05, count: int = 4800) -> None:
        super().__init__(count=count)
        self.folder, self.pause_s = Path(folder), pause_s

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            import os

            (self.folder / f"rank{self.global_rank}").write_text(str(os.getpid()))
        time.sleep(self.pause_s)
        return super().training_step(batch, batch_idx)
