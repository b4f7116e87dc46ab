"""`TensorBoardLogger`: write metrics for TensorBoard."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratagem.sdk.selection import path_text
from stratagem_trainer.loggers.base import Row, flattened
from stratagem_trainer.loggers.folder import versioned
from stratagem_trainer.loggers.library import LibraryLogger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger(LibraryLogger):
    """Write scalars by step, with the epoch as one of them; the run's config as text; and hyperparameters.

    `experiment` is torch's SummaryWriter.

    Args:
        save_dir: folder of several runs, each of which gets save_dir/name/version_N; None is tensorboard/ in the
            run's folder.
        name: folder in `save_dir`; "" for none.
        version: number or name of the run's folder; None is the next number.
        log_graph: write the module's graph when a fit starts, if it has an `example_input_array`.
        default_hp_metric: write hp_metric=-1 with hyperparameters, so that TensorBoard lists them.
        prefix: for the names of metrics, joined by "-".
        sub_dir: folder in the run's folder.
        writer: other arguments of torch's SummaryWriter.

    Raises:
        UsageError: the package tensorboard isn't installed.
    """

    library = package = "tensorboard"

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        name: str | None = "logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | None = None,
        **writer: Any,
    ) -> None:
        super().__init__(prefix)
        self._save_dir = None if save_dir is None else path_text("save_dir", save_dir)
        self._name, self._version, self._sub_dir = name, version, sub_dir
        self._logs_graph, self._default_hp_metric = log_graph, default_hp_metric
        self._writer_arguments = writer
        self._resumed_step: int | None = None

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def version(self) -> int | str | None:
        return self._version

    @property
    def save_dir(self) -> str | None:
        return self._save_dir

    @property
    def log_dir(self) -> str:
        """Folder of the event files."""
        if self._save_dir is None:
            folder = os.path.join(self.run_dir, "tensorboard")
        else:
            folder, self._version = versioned(self._save_dir, self._name, self._version)
        return os.path.join(folder, self._sub_dir) if self._sub_dir else folder

    def open(self, run_dir: str, config: Mapping[str, Any], resumed_step: int | None = None) -> None:
        self._resumed_step = resumed_step
        super().open(run_dir, config, resumed_step)

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Write hyperparameters, and metrics by which to compare runs, for TensorBoard's tab HPARAMS."""
        from torch.utils.tensorboard.summary import hparams

        shown = dict(metrics or ({"hp_metric": -1.0} if self._default_hp_metric else {}))
        writer = self.experiment
        for name, value in shown.items():
            writer.add_scalar(name, value, 0)
        if self.is_muted:
            return
        for summary in hparams(flattened(params), shown):  # type: ignore[no-untyped-call]  # torch has no types for it
            writer.file_writer.add_summary(summary)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        example = getattr(model, "example_input_array", None) if input_array is None else input_array
        if self._logs_graph and example is not None:
            self.experiment.add_graph(model, example)

    def flush(self) -> None:
        if self._experiment is not None:
            self._experiment.flush()

    def _go_on(self, version: int | str | None) -> None:
        self._version = version

    def _start(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        # With it, TensorBoard hides what a killed run has written after this step.
        purge_step = None if self._resumed_step is None else self._resumed_step + 1
        return SummaryWriter(self.log_dir, **{"purge_step": purge_step, **self._writer_arguments})

    def _opened(self, experiment: SummaryWriter, config: Mapping[str, Any]) -> None:
        text = json.dumps(config, indent=2, default=str)
        experiment.add_text("config", f"```json\n{text}\n```")

    def _write(self, experiment: SummaryWriter, row: Row) -> None:
        for name, value in row.values.items():
            experiment.add_scalar(name, value, row.step)
        experiment.add_scalar("epoch", row.epoch, row.step)

    def _close(self, experiment: SummaryWriter, failed: bool) -> None:
        experiment.close()
