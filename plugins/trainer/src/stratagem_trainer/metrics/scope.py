"""`Scope`: what is logged between two reductions, and under which names it comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from stratagem.errors import LoggingError
from stratagem_trainer.metrics.accumulator import Accumulator, Value, as_float
from stratagem_trainer.metrics.metric_objects import path_in, refuse_unless_scalar
from stratagem_trainer.metrics.reduction import Partial

POSITION = ("step", "epoch")
"""What every row has anyway."""


class LogOptions(NamedTuple):
    """How a name is logged; the same each time."""

    prog_bar: bool
    on_step: bool
    on_epoch: bool
    reduce_fx: str
    sync_dist: bool
    logger: bool = True

    @property
    def weighs(self) -> bool:
        """Whether anything is made of how many samples a value stands for."""
        return self.reduce_fx == "mean" and (self.on_epoch or self.sync_dist)

    def step_key(self, name: str) -> str:
        """What the value of one step is called."""
        return _ending(name, "_step") if self.on_epoch else name

    def epoch_key(self, name: str) -> str:
        """What the reduction over an epoch is called; where that isn't the name itself, it is that too."""
        return _ending(name, "_epoch") if self.on_step else name

    def keys(self, name: str) -> tuple[str, ...]:
        """All keys under which the name comes out: one, or `x_step`, `x_epoch` and `x`."""
        both = self.on_step and self.on_epoch
        return (_ending(name, "_step"), _ending(name, "_epoch"), name) if both else (name,)


REDUCTIONS: Mapping[Any, str] = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.min: "min",
    torch.max: "max",
}
"""Functions that may be given in the place of a reduction's name."""

LOADER = "/dataloader_idx_"
"""Between a name and the number of the loader, where an evaluation has several."""


def _ending(name: str, ending: str) -> str:
    base, slash, index = name.partition(LOADER)
    return f"{base}{ending}{slash}{index}"


class StepRow(NamedTuple):
    """What one step logged."""

    values: dict[str, Value]
    weights: dict[str, Value]


class Scope:
    """What is logged between two reductions: a training epoch, or an evaluation.

    Args:
        stage: "train", or that of the evaluation.
        suffix: what is appended to names: which of several loaders an evaluation reads.
    """

    def __init__(self, stage: str, suffix: str = "") -> None:
        self.suffix = suffix
        self.objects: dict[str, nn.Module] = {}
        """Name → the metric object that was logged with `on_epoch` since the last reduction."""
        self.is_training = stage == "train"
        self.in_step = not self.is_training
        """Whether a step runs: a value that is logged outside one belongs to the epoch."""
        self.had_batches = False
        """Whether a step of an evaluation has run on this rank."""
        self.num_batches = 0
        """Steps of an evaluation that have run on this rank."""
        self.step = StepRow({}, {})
        self._rows: list[StepRow] = []
        self.stage = stage
        self.asked: dict[tuple[Any, ...], LogOptions] = {}
        """How a value was logged, in the caller's words, and whether in a step → what `read_options` returned."""
        self._options: dict[str, LogOptions] = {}
        self._owners: dict[str, str] = {}
        self._sums: dict[str, Accumulator] = {}
        self._loaded: set[str] = set()
        self._has_endings = False
        """Whether the value of a step may have another key than its name."""

    def options(self, name: str) -> LogOptions:
        """How `name`, which was logged before, is logged."""
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
        """Fill in the defaults, and check a name that is logged for the first time, or in another way.

        Raises:
            LoggingError: the value, the name or how it is logged isn't possible here.
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
            # The module logs it in another way than when the checkpoint was written.
            self._loaded.discard(name)
            self._sums.pop(name, None)
            self.objects.pop(name, None)
        elif known is not None:
            raise LoggingError(
                f"{name!r} was logged with {_described(known)} before, and with {_described(options)} now: "
                "log it in one way"
            )
        if name in POSITION:
            raise LoggingError(
                f"{name!r} is a column of every row of metrics already: log it by another name"
            )
        if self.stage == "predict":
            raise LoggingError(
                f"{name!r} is logged while predicting, which has no metrics: return it, or use test"
            )
        if options.on_step and not self.in_step:
            raise LoggingError(
                f"{name!r} is logged with on_step=True where no step runs: leave on_step out, and it belongs to the "
                "epoch"
            )
        refuse_unless_scalar(name, value)
        if isinstance(value, torch.Tensor) and value.is_complex():
            raise LoggingError(f"{name!r} is complex: log its real part, imaginary part or size")
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
        """Return what a step logged by the keys that files have."""
        if not self._has_endings:
            return values
        return {self._options[name].step_key(name): value for name, value in values.items()}

    def add(self, name: str, value: Value, weight: Value, options: LogOptions) -> None:
        """Add a value that stands for `weight` samples."""
        if options.on_step:
            self.step.values[name] = value
            self.step.weights[name] = weight
        if options.on_epoch:
            total = self._sums.get(name)
            if total is None:
                total = self._sums[name] = Accumulator(options.reduce_fx)
            total.add(value, weight)

    def take_step(self) -> StepRow:
        """Return what the step logged, and begin the next."""
        row, self.step = self.step, StepRow({}, {})
        return row

    def take_values(self) -> dict[str, Value]:
        """Return what the step logged by the keys that files have, and begin the next."""
        values = self.step.values
        taken = self.by_step_key(values) if self._has_endings else values.copy()
        values.clear()
        return taken

    def drop_step(self) -> None:
        """Forget what the step logged, and begin the next."""
        if self.step.values:
            self.step = StepRow({}, {})

    def end_evaluation_step(self) -> None:
        """Keep what an evaluation's step logged as a separate row."""
        self.had_batches = True
        self.num_batches += 1
        if self.step.values:
            # Those before it that logged nothing: a row's place is its batch's.
            self._rows += [StepRow({}, {})] * (self.num_batches - 1 - len(self._rows))
            self._rows.append(self.take_step())

    def take_rows(self) -> list[dict[str, Partial]]:
        """Return what single evaluation steps logged, in their order; waits for the device."""
        if self.step.values and not self.is_training:
            self._rows.append(self.take_step())  # logged after the last step
        rows, self._rows = self._rows, []
        return [
            {
                self._options[name].step_key(name): Partial(
                    self._options[name].reduce_fx if self._options[name].sync_dist else "first",
                    as_float(value),
                    row.weights[name],
                )
                for name, value in row.values.items()
            }
            for row in rows
        ]

    def take_sums(self) -> dict[str, Partial]:
        """Return what was added up, and begin again; waits for the device."""
        parts = {name: total.partial() for name, total in self._sums.items()}
        self._sums.clear()
        return parts

    def state(self) -> dict[str, list[Any]]:
        """What was added up so far, and how it was logged; waits for the device."""
        return {name: [list(self._options[name]), total.state()] for name, total in self._sums.items()}

    def load(self, state: Mapping[str, list[Any]]) -> None:
        """Restore what `state` returned: a resumed epoch may end before any of it is logged again."""
        self._sums = {name: Accumulator(*total) for name, (_, total) in state.items()}
        self._options = {name: LogOptions(*options) for name, (options, _) in state.items()}
        self._loaded, self._has_endings = set(state), True
        self.asked.clear()

    def objects_state(self, module: nn.Module) -> dict[str, list[Any]]:
        """The metric objects that were logged so far, by path, and how."""
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
