"""`WandbLogger`: sends metrics to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from stratagem_trainer.loggers.base import Row
from stratagem_trainer.loggers.library import LibraryLogger

from stratagem.errors import ConfigError
from stratagem.sdk.selection import path_text


class WandbLogger(LibraryLogger):
    """A run of Weights & Biases; metrics are plotted over "trainer/global_step". `experiment` is the `wandb.Run`.

    If a run is active in this process, the logger uses that one instead of starting another.

    Args:
        name: name of the run.
        save_dir: folder for wandb/; None is the run folder.
        version: id of a run to continue; the same as `id`.
        offline: write everything to files, for `wandb sync`.
        dir: the same as `save_dir`.
        id: id of the run.
        anonymous: as in wandb.
        project: name of the project; None is WANDB_PROJECT, or "stratagem" if that isn't set.
        log_model: must be False: checkpoints are folders, which `experiment.log_artifact` can log.
        experiment: a run that was started already.
        prefix: put before the names of metrics, joined by "-".
        init: other arguments of `wandb.init`.

    Raises:
        UsageError: the package wandb isn't installed.
        ConfigError: `log_model`.
    """

    library = package = "wandb"

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] | None = None,
        version: str | None = None,
        offline: bool = False,
        dir: str | os.PathLike[str] | None = None,
        id: str | None = None,
        anonymous: Any = None,
        project: str | None = None,
        log_model: bool | str = False,
        experiment: Any = None,
        prefix: str = "",
        **init: Any,
    ) -> None:
        super().__init__(prefix)
        if log_model:
            raise ConfigError(
                f"WandbLogger got log_model={log_model!r}: checkpoints aren't uploaded automatically; log what you "
                "want of them as an artifact by logger.experiment"
            )
        folder = save_dir if save_dir is not None else dir
        self._save_dir = None if folder is None else path_text("save_dir", folder)
        self._run_name, self._id, self._project = name, version or id, project
        self._offline = offline
        self._init = dict(init) if anonymous is None else {**init, "anonymous": anonymous}
        self._experiment = experiment
        self._watching: tuple[str | None, int, bool] | None = None

    @property
    def name(self) -> str | None:
        """Name of the project."""
        return self._project or os.environ.get("WANDB_PROJECT", "stratagem")

    @property
    def version(self) -> str | None:
        """Id of the run; None before the run starts, unless it was given."""
        return self._experiment.id if self._experiment is not None else self._id

    @property
    def save_dir(self) -> str | None:
        return self._save_dir

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self.experiment.config.update(dict(params), allow_val_change=True)

    def watch(
        self, model: Any, log: str | None = "gradients", log_freq: int = 100, log_graph: bool = True
    ) -> None:
        """Log histograms of gradients, parameters or both ("all"). Before a fit, it watches the fit's module."""
        if self._experiment is None:
            self._watching = log, log_freq, log_graph
        else:
            self._experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        if self._watching is not None and not self.is_muted:
            log, log_freq, log_graph = self._watching
            self.experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **how: Any) -> None:
        """Log images: arrays, tensors, paths or PIL images. `how` has a list for each argument of wandb.Image."""
        if self.is_muted:
            return
        import wandb

        parts = [{name: values[index] for name, values in how.items()} for index in range(len(images))]
        made = [wandb.Image(image, **part) for image, part in zip(images, parts)]
        self._log({key: made}, step)

    def log_table(
        self,
        key: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table of columns and rows, or a pandas DataFrame."""
        if not self.is_muted:
            import wandb

            self._log({key: wandb.Table(columns=columns, data=data, dataframe=dataframe)}, step)

    def log_text(
        self, key: str, columns: list[str] | None = None, data: list[list[Any]] | None = None, **how: Any
    ) -> None:
        """Log a table of texts."""
        self.log_table(key, columns, data, **how)

    def _log(self, values: dict[str, Any], step: int | None) -> None:
        self.experiment.log(values if step is None else {**values, "trainer/global_step": step})

    def _go_on(self, version: str | None) -> None:
        self._id = version

    def _start(self) -> Any:
        import wandb

        run: Any = wandb.run
        if run is None:
            arguments = {"project": self.name, "name": self._run_name, "id": self._id, "resume": "allow"}
            arguments["dir"] = self._save_dir or self.run_dir
            if self._offline:
                arguments["mode"] = "offline"
            run = wandb.init(**{**arguments, **self._init})
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        self._id = run.id
        return run

    def _opened(self, experiment: Any, config: Mapping[str, Any]) -> None:
        experiment.config.update(dict(config), allow_val_change=True)

    def _write(self, experiment: Any, row: Row) -> None:
        experiment.log({**row.values, "epoch": row.epoch, "trainer/global_step": row.step})

    def _close(self, experiment: Any, failed: bool) -> None:
        experiment.finish(exit_code=1 if failed else 0)
