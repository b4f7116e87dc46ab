"""`TensorBoardLogger`: writes metrics where TensorBoard reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stratagem.errors import UsageError
from stratagem_trainer.loggers.base import Logger, Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger(Logger):
    """Scalars by step, the epoch among them, and the run's config as text.

    Args:
        dirname: folder for the event files, within the run's folder.

    Raises:
        UsageError: the package tensorboard isn't installed.
    """

    def __init__(self, dirname: str = "tensorboard") -> None:
        if find_spec("tensorboard") is None:
            raise UsageError("TensorBoardLogger needs the package tensorboard: pip install tensorboard")
        self.dirname = dirname
        self._writer: SummaryWriter | None = None

    def open(self, run_dir: str, config: Mapping[str, Any], resumed_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            os.path.join(run_dir, self.dirname),
            # TensorBoard hides what a killed run has written from this step on.
            purge_step=None if resumed_step is None else resumed_step + 1,
        )
        text = json.dumps(config, indent=2, default=str)
        self._writer.add_text("config", f"```json\n{text}\n```")

    def write(self, rows: Sequence[Row]) -> None:
        assert self._writer is not None, "open comes before write"
        for row in rows:
            for name, value in row.values.items():
                self._writer.add_scalar(name, value, row.step)
            self._writer.add_scalar("epoch", row.epoch, row.step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self, failed: bool = False) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
