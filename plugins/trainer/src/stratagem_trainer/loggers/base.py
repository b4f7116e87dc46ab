"""`Logger`: receives a trainer's metrics. Loggers are active only on rank 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Row(NamedTuple):
    """The values that were logged at one point of the run."""

    step: int
    """Number of completed optimizer steps."""
    epoch: int
    values: Mapping[str, float]


class Logger:
    """Receives metrics in groups of rows, so that logging in every step doesn't access a file in every step.

    Override `write` in your own logger; or override `log_metrics`, which then gets each row.
    """

    is_muted: bool = False
    """Whether this process isn't rank 0. A muted logger drops all values."""

    # Called by a trainer, on rank 0 ------------------------------------------------------------------

    def open(self, run_dir: str, config: Mapping[str, Any], resumed_step: int | None = None) -> None:
        """Start logging. Called on rank 0 before the first row, and again by each later stage.

        Args:
            run_dir: the run's folder, which exists.
            config: hyperparameters and settings of the run, nested, JSON-serializable.
            resumed_step: number of completed optimizer steps at which a fit starts, 0 for a new one. Rows of later
                steps, which a killed run has written, are dropped. None drops nothing.
        """

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Log the hyperparameters that `save_hyperparameters` has saved, if any. Called after `open`.

        Args:
            params: JSON-serializable, nested; classes and functions are given by name.
        """

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Log the module's graph. Called after `open`, with the prepared module."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, in the order in which they were logged."""
        for row in rows:
            self.log_metrics({**row.values, "epoch": row.epoch}, row.step)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Called on rank 0 after a `ModelCheckpoint` has written a complete checkpoint."""

    def flush(self) -> None:
        """Make all written rows readable for others, for example by flushing files."""

    def close(self, failed: bool = False) -> None:
        """End logging. Called once for each `open`, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return picklable state, so that a copy in another process can continue the run. Called before `close`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of this state. Called in the launching process with the state of rank 0 in a worker."""

    # Called by modules and programs -------------------------------------------------------------------

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values immediately, for `step` completed optimizer steps. A muted logger drops them."""
        if type(self).write is Logger.write:
            raise NotImplementedError(f"{type(self).__qualname__} overrides neither write nor log_metrics")
        if not self.is_muted:
            self.write([Row(step or 0, 0, {name: float(value) for name, value in metrics.items()})])

    def save(self) -> None:
        """Call `flush`."""
        self.flush()

    def finalize(self, status: str = "success") -> None:
        """Same as `close`; a status other than "success" is a failure. An override is called instead of `close`."""
        self.close(failed=status != "success")

    @property
    def experiment(self) -> Any:
        """The library's object for the run. On ranks other than 0, an object that does nothing."""
        return NoExperiment()

    @property
    def name(self) -> str | None:
        """Name of the experiment or project; None if there is none."""
        return None

    @property
    def version(self) -> int | str | None:
        """Version of the run, or its ID in the library."""
        return None

    @property
    def save_dir(self) -> str | None:
        """Folder that was passed for its files; None if there is none."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Folder of this run's files; None if there is none."""
        return self.save_dir

    def mute(self) -> Logger:
        """Drop all values from now on. Called on all ranks but 0."""
        self.is_muted = True
        return self


class NoExperiment:
    """Accepts any call, and does nothing. `experiment` returns it on ranks that don't log."""

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
    """Call `after_save_checkpoint` of each logger."""
    for logger in loggers:
        logger.after_save_checkpoint(checkpoint_callback)


def end(logger: Logger, failed: bool) -> None:
    """End logging: call `finalize` if the logger's class overrides it, or else `close`."""
    if type(logger).finalize is Logger.finalize:
        logger.close(failed)
    else:
        logger.finalize("failed" if failed else "success")


def flattened(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters with names joined by "/". Values other than numbers, text and bools become text."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
