"""`Scope`: the values that are logged between two reductions, and the keys under which they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from stratagem.errors import LoggingError
from stratagem_trainer.metrics.accumulator import Accumulator, Value, as_float
from stratagem_trainer.metrics.metric_objects import path_in, refuse_unless_scalar
from stratagem_trainer.metrics.reduction import PartialReduction

POSITION = ("step", "epoch")
"""Columns of every row. No value may have these names."""


class LogOptions(NamedTuple):
    """How a name is logged. Equal for all values of the name in a scope."""

    prog_bar: bool
    on_step: bool
    on_epoch: bool
    reduce_fx: str
    sync_dist: bool
    logger: bool = True

    @property
    def weighs(self) -> bool:
        """Return whether the reduction needs the weights of values."""
        return self.reduce_fx == "mean" and (self.on_epoch or self.sync_dist)

    def step_key(self, name: str) -> str:
        """Return the key for the value of one step."""
        return _ending(name, "_step") if self.on_epoch else name

    def epoch_key(self, name: str) -> str:
        """Return the key for the value of the epoch. If it isn't `name`, the value is also available as `name`."""
        return _ending(name, "_epoch") if self.on_step else name

    def keys(self, name: str) -> tuple[str, ...]:
        """Return all keys of the name: one, or `x_step`, `x_epoch` and `x`."""
        both = self.on_step and self.on_epoch
        return (_ending(name, "_step"), _ending(name, "_epoch"), name) if both else (name,)


REDUCTIONS: Mapping[Any, str] = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.min: "min",
    torch.max: "max",
}
"""torch function that may be passed as `reduce_fx` → name of the reduction."""

LOADER = "/dataloader_idx_"
"""Separates a name from the index of the loader, in evaluations with several loaders."""


def _ending(name: str, ending: str) -> str:
    base, slash, index = name.partition(LOADER)
    return f"{base}{ending}{slash}{index}"


class StepRow(NamedTuple):
    """The values that one step has logged."""

    values: dict[str, Value]
    weights: dict[str, Value]


class Scope:
    """The values that are logged between two reductions: in a training epoch, or in an evaluation.

    Args:
        stage: "train", "validate", "test" or "predict".
        suffix: appended to names; it has the index of the loader, if an evaluation has several.
    """

    def __init__(self, stage: str, suffix: str = "") -> None:
        self.suffix = suffix
        self.objects: dict[str, nn.Module] = {}
        """Name → metric object that was logged with `on_epoch` since the last reduction."""
        self.is_training = stage == "train"
        self.in_step = not self.is_training
        """Whether a step is running. Values that are logged outside of steps belong to the epoch."""
        self.had_batches = False
        """Whether this rank has run a step of the evaluation."""
        self.num_batches = 0
        """Number of the evaluation's steps that this rank has run."""
        self.step = StepRow({}, {})
        self._rows: list[StepRow] = []
        self.stage = stage
        self.asked: dict[tuple[Any, ...], LogOptions] = {}
        """Arguments of a call of `log`, and whether a step was running → the `LogOptions` for it."""
        self._options: dict[str, LogOptions] = {}
        self._owners: dict[str, str] = {}
        self._sums: dict[str, Accumulator] = {}
        self._loaded: set[str] = set()
        self._has_endings = False
        """Whether the key of a step's value may differ from its name."""

    def options(self, name: str) -> LogOptions:
        """Return the options with which `name` was logged before."""
        return self._options[name]

    def read_options(
        self,
        name: str,
        value: Any,
        prog_bar: bool,
        on_step: bool | None,
        on_epoch: bool | None,
        reduce_fx: str,
        sync_dist: bool | None,
        logger: bool = True,
    ) -> LogOptions:
        """Fill in the defaults, and check a name that is new or is logged with other options than before.

        Raises:
            LoggingError: the value, the name or an option isn't allowed here.
        """
        per_step = self.is_training and self.in_step
        options = LogOptions(
            prog_bar,
            per_step if on_step is None else on_step,
            not per_step if on_epoch is None else on_epoch,
            reduce_fx,
            not self.is_training if sync_dist is None else sync_dist,
            logger,
        )
        if self._options.get(name) != options:
            self._first(name, value, options)
        return options

    def _first(self, name: str, value: Any, options: LogOptions) -> None:
        known = self._options.get(name)
        if known is not None and name in self._loaded:
            # The module now logs the name with other options than when the checkpoint was written.
            self._loaded.discard(name)
            self._sums.pop(name, None)
            self.objects.pop(name, None)
        elif known is not None:
            raise LoggingError(
                f"{name!r} was logged with {_described(known)} before, and is logged with {_described(options)} now: "
                "use the same options each time"
            )
        if name in POSITION:
            raise LoggingError(
                f"{name!r} is a column of every row of metrics already: log it under another name"
            )
        if self.stage == "predict":
            raise LoggingError(
                f"{name!r} is logged while predicting, which has no metrics: return it, or use test"
            )
        if options.on_step and not self.in_step:
            raise LoggingError(
                f"{name!r} is logged with on_step=True while no step is running: leave out on_step, and it is logged "
                "for the epoch"
            )
        refuse_unless_scalar(name, value)
        if isinstance(value, torch.Tensor) and value.is_complex():
            raise LoggingError(f"{name!r} is complex: log its real part, imaginary part or absolute value")
        if options.reduce_fx not in ("mean", "sum", "min", "max"):
            raise LoggingError(
                f"{name!r} has reduce_fx={options.reduce_fx!r}, which must be one of mean, sum, min, max"
            )
        for key in options.keys(name):
            owner = self._owners.setdefault(key, name)
            if owner != name:
                raise LoggingError(
                    f"{name!r} and {owner!r} would both be {key!r}: a name logged with on_step and on_epoch has "
                    "_step and _epoch appended; rename one"
                )
        self._options[name] = options
        self._has_endings = self._has_endings or options.step_key(name) != name

    def by_step_key(self, values: dict[str, Value]) -> dict[str, Value]:
        """Return a step's values by the keys that are written to files."""
        if not self._has_endings:
            return values
        return {self._options[name].step_key(name): value for name, value in values.items()}

    def add(self, name: str, value: Value, weight: Value, options: LogOptions) -> None:
        """Add a value with a weight, such as its number of samples."""
        if options.on_step:
            self.step.values[name] = value
            self.step.weights[name] = weight
        if options.on_epoch:
            total = self._sums.get(name)
            if total is None:
                total = self._sums[name] = Accumulator(options.reduce_fx)
            total.add(value, weight)

    def take_step(self) -> StepRow:
        """Return what the step has logged, and begin the next step."""
        row, self.step = self.step, StepRow({}, {})
        return row

    def take_values(self) -> dict[str, Value]:
        """Return a step's values by the keys that are written to files, and begin the next step."""
        values = self.step.values
        taken = self.by_step_key(values) if self._has_endings else values.copy()
        values.clear()
        return taken

    def drop_step(self) -> None:
        """Discard what the step has logged, and begin the next step."""
        if self.step.values:
            self.step = StepRow({}, {})

    def end_evaluation_step(self) -> None:
        """End a step of an evaluation. What it has logged becomes a row."""
        self.had_batches = True
        self.num_batches += 1
        if self.step.values:
            # Add empty rows for steps that logged nothing: a row's index is that of its batch.
            self._rows += [StepRow({}, {})] * (self.num_batches - 1 - len(self._rows))
            self._rows.append(self.take_step())

    def take_rows(self) -> list[dict[str, PartialReduction]]:
        """Return and clear the rows of single evaluation steps, in order. Waits for the device."""
        if self.step.values and not self.is_training:
            self._rows.append(self.take_step())  # logged after the last step
        rows, self._rows = self._rows, []
        return [
            {
                self._options[name].step_key(name): PartialReduction(
                    self._options[name].reduce_fx if self._options[name].sync_dist else "first",
                    as_float(value),
                    row.weights[name],
                )
                for name, value in row.values.items()
            }
            for row in rows
        ]

    def take_sums(self) -> dict[str, PartialReduction]:
        """Return and clear the accumulated values. Waits for the device."""
        parts = {name: total.partial() for name, total in self._sums.items()}
        self._sums.clear()
        return parts

    def state(self) -> dict[str, list[Any]]:
        """Return the accumulated values and their options. Waits for the device."""
        return {name: [list(self._options[name]), total.state()] for name, total in self._sums.items()}

    def load(self, state: Mapping[str, list[Any]]) -> None:
        """Restore what `state` returned, with options: a resumed epoch may end before a name is logged again."""
        self._sums = {name: Accumulator(*total) for name, (_, total) in state.items()}
        self._options = {name: LogOptions(*options) for name, (options, _) in state.items()}
        self._loaded, self._has_endings = set(state), True
        self.asked.clear()

    def objects_state(self, module: nn.Module) -> dict[str, list[Any]]:
        """Return the path and the options of each metric object that was logged so far."""
        return {
            name: [path_in(module, each, name, None), list(self._options[name])]
            for name, each in self.objects.items()
        }

    def load_objects(self, state: Mapping[str, list[Any]], module: nn.Module) -> None:
        """Restore what `objects_state` returned."""
        for name, (path, options) in state.items():
            self.objects[name] = module.get_submodule(path)
            self._options[name] = LogOptions(*options)
            self._loaded.add(name)
        self.asked.clear()


def _described(options: LogOptions) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options._asdict().items())
