"""`Logger`: where a trainer's metrics go. Only rank 0 has live loggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Row(NamedTuple):
    """Values logged at one point of the run."""

    step: int
    """Completed optimizer steps."""
    epoch: int
    values: Mapping[str, float]


class Logger:
    """Receives metrics in groups, so that logging every step costs no file access every step.

    Your own logger overrides `write`, or `log_metrics`, which then gets each row.
    """

    is_muted: bool = False
    """Whether this process isn't rank 0 of a run: whatever is logged is dropped."""

    # What a trainer calls, on rank 0 ------------------------------------------------------------------

    def open(self, run_dir: str, config: Mapping[str, Any], resumed_step: int | None = None) -> None:
        """Start in the run's folder; called on rank 0 before the first row, and again by each later stage.

        Args:
            run_dir: an existing folder.
            config: hyperparameters and settings of the run, nested, JSON-able.
            resumed_step: in a fit, the completed optimizer steps that it goes on from, 0 for a fresh one:
                what is there of later steps was left by a killed run and is dropped. None drops nothing.
        """

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Log what the module's `save_hyperparameters` kept; called after `open`, where there is something.

        Args:
            params: JSON-able, nested; of classes and functions their names.
        """

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Note the module, once it is prepared; called after `open`."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, in the order in which they were logged."""
        for row in rows:
            self.log_metrics({**row.values, "epoch": row.epoch}, row.step)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """A `ModelCheckpoint` has saved, and what it saved is complete; called on rank 0."""

    def flush(self) -> None:
        """Make everything written so far readable for others, as by flushing files."""

    def close(self, failed: bool = False) -> None:
        """Finish; called once for each `open`, also after an exception."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a copy in another process needs to add to the same run, picklable; called before `close`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add to the run of this state from now on: in the launching process, what rank 0 had in a worker."""

    # What modules and programs call -------------------------------------------------------------------

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values at once, as those of `step` completed optimizer steps; on rank 0, elsewhere dropped."""
        if type(self).write is Logger.write:
            raise NotImplementedError(f"{type(self).__qualname__} overrides neither write nor log_metrics")
        if not self.is_muted:
            self.write([Row(step or 0, 0, {name: float(value) for name, value in metrics.items()})])

    def save(self) -> None:
        """Call `flush`."""
        self.flush()

    def finalize(self, status: str = "success") -> None:
        """As `close`; any other status than "success" is a failure. A logger that overrides this is ended by it."""
        self.close(failed=status != "success")

    @property
    def experiment(self) -> Any:
        """The library's own object; on other ranks than 0 one that does nothing."""
        return NoExperiment()

    @property
    def name(self) -> str | None:
        """Name of the experiment or project, where there is one."""
        return None

    @property
    def version(self) -> int | str | None:
        """Version of the run, as the library calls it."""
        return None

    @property
    def save_dir(self) -> str | None:
        """Where its files are, as it was given."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Folder of this run's files."""
        return self.save_dir

    def mute(self) -> Logger:
        """Make it drop everything: for all ranks but 0."""
        self.is_muted = True
        return self


class NoExperiment:
    """Takes any call, and does nothing: what `experiment` is on ranks that log nothing."""

    def __getattr__(self, name: str) -> NoExperiment:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoExperiment:
        return self

    def __getitem__(self, key: Any) -> NoExperiment:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def tell_saved(loggers: Iterable[Logger], checkpoint_callback: Any) -> None:
    """Call `after_save_checkpoint` of each."""
    for logger in loggers:
        logger.after_save_checkpoint(checkpoint_callback)


def end(logger: Logger, failed: bool) -> None:
    """Call `finalize` where a logger's class has it, or else `close`: what a trainer does at a run's end."""
    if type(logger).finalize is Logger.finalize:
        logger.close(failed)
    else:
        logger.finalize("failed" if failed else "success")


def flattened(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters by names joined with "/"; what is no number, text or bool as text."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
