"""`StrategySubject`: the strategy that checks are run on, and how to make a run with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stratagem import Capabilities, RunConfig
from stratagem.errors import PrecisionError
from stratagem.sdk.catalogue import load_catalogue
from stratagem.sdk.runs import choose_strategy
from stratagem_testing.workers import TIMEOUT_S, shared_workers

if TYPE_CHECKING:
    from stratagem_trainer.trainer import Trainer
    from torch.optim import Optimizer

    from stratagem import Runtime, Strategy

TOLERANCES: Mapping[str, float] = {
    "32-true": 2e-6,
    "64-true": 1e-12,
    "bf16-mixed": 2e-2,
    "16-mixed": 4e-3,
    "bf16-true": 6e-2,
    "16-true": 2e-2,
}
"""Precision → allowed difference of losses and parameters from those of one process after 20 steps."""

COMPARED_WITH_ITSELF = (
    "save_and_load",
    "state_of_every_kind",
    "weights_alone",
    "validation_changes_nothing",
    "checkpoint_is_what_was_evaluated",
    "ranks_after_fit",
)
"""Checks that compare a run with itself. They also hold for settings with which a strategy loses precision."""

DRIFTING_REPLICAS: dict[str, str] = {
    **{
        f"{name}-{size}": "not linear in gradients, and replicas step independently: results differ by design"
        for name in (
            "optimizers",
            "some_ranks_without_loss",
            "norm_clipping",
            "value_clipping",
            "other_world_size",
        )
        for size in (2, 4)
    },
    "whole_optimizers-2": "Rprop uses the signs of gradients, which differ between replicas: by design",
    "own_backwards-2": "each replica clips its own gradients, which aren't averaged: by design",
    "own_gradients-2": "replicas have their own gradients between averages of the parameters: by design",
    "returned_norm-2": "each replica has its own gradients, and clips by their norm: by design",
}
"""Waivers for a strategy whose replicas step independently and average parameters, such as local SGD."""


@dataclass(frozen=True)
class StrategySubject:
    """A strategy to check. Frozen and picklable: every worker has a copy."""

    strategy: str | Callable[..., Strategy]
    """Its name, or a function that makes it from keyword arguments: a class at the top level of a module."""
    accelerator: str = "cpu"
    """Name of the accelerator to run on."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for its constructor, in every check."""
    options_for: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name of a check, or "parity-4" for 4 devices → further keyword arguments there."""
    options_at: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """World size → further keyword arguments there."""
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """Precision → tolerance that overrides `TOLERANCES`."""
    tolerances_for: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Name of a check, or "parity-4" for 4 devices → precision → tolerance that overrides `tolerances` there."""
    data_ranks: Callable[[int], int] | None = None
    """Returns the number of ranks that share the data at a world size; by default all. A function at the top level
    of a module."""
    optimizer: Callable[[Optimizer], Optimizer] | None = None
    """Replaces a check's optimizer, also in plain PyTorch: for a strategy that steps only one class of optimizers. A
    function at the top level of a module; by default optimizers aren't replaced."""
    feeds_errors_back: bool = False
    """Whether it adds rounding errors of gradients to later gradients (error feedback). A check then tries it."""
    waivers: Mapping[str, str] = field(default_factory=dict)
    """Name of a check → why it is expected to fail; "parity-4" is on 4 devices only."""
    own_processes: bool = False
    """Whether ranks run in separate processes for each number of devices, in which nothing else ever runs. For
    engines that a process can start only once."""
    timeout_s: float = TIMEOUT_S
    """Timeout after which a task counts as hanging."""

    world_size: int = 1
    """Number of devices of the run; set for each check."""
    check: str = ""
    """Name of the running check; set for each check."""
    folder: str = ""
    """Folder for files; set for each check, whose tasks share it. Outside of checks, each task has its own."""

    @property
    def capabilities(self) -> Capabilities:
        """The strategy's declared capabilities."""
        given = self.strategy if isinstance(self.strategy, str) else self.strategy(**self._options())
        options = self._options() if isinstance(self.strategy, str) else {}
        return choose_strategy(load_catalogue(), given, options, 1).capabilities

    @property
    def features(self) -> frozenset[str]:
        """The strategy's declared features: names from `FEATURES`."""
        return self.capabilities.features

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.strategy if isinstance(self.strategy, str) else self.strategy.__name__

    def world_sizes(self) -> tuple[int, ...]:
        """Return the numbers of devices on which the strategy can be tried."""
        one = self.capabilities.processes == "one" and "several_devices" not in self.capabilities.features
        return (1,) if one else (1, 2, 4)

    def tolerance(self, precision: str = "32-true") -> float:
        """Return the allowed difference from the numbers of one process."""
        here: dict[str, float] = self._here(self.tolerances_for)
        return {**TOLERANCES, **self.tolerances, **here}[precision]

    def shares(self, world_size: int | None = None) -> int:
        """Return the number of ranks that share the data."""
        if self.data_ranks is not None:
            return self.data_ranks(world_size or self.world_size)
        return self.processes(world_size)

    def processes(self, world_size: int | None = None) -> int:
        """Return the number of processes of a run on so many devices."""
        return (world_size or self.world_size) if self.capabilities.processes == "per-device" else 1

    def at(self, world_size: int) -> StrategySubject:
        """Return the subject for another number of devices."""
        return replace(self, world_size=world_size)

    def refuses_precision(self, name: str) -> bool:
        """Return whether it declares a precision, but refuses it on this accelerator with these options."""
        from stratagem.sdk.runs import assemble

        try:
            assemble(RunConfig(**{**self._selection(None), "precision": name}))
        except PrecisionError:
            return True
        return False

    # In the process of the tests ------------------------------------------------------------------

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> list[Any]:
        """Run `function(subject, *args)` in every rank of a run; return the results by rank.

        Raises:
            RankError: a rank raised, ended or hung.
        """
        own = f"{self.name} on {self.world_size}" if self.own_processes else ""
        workers, processes = shared_workers(own), self.processes()
        with self._in_folder() as subject:
            return workers.run(processes, function, subject, *args, timeout_s=timeout_s or self.timeout_s)

    def alone(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """Run `function(subject, *args)` in a new process that may launch a run itself.

        Raises:
            RankError: it raised, ended or hung.
        """
        with self._in_folder() as subject:
            return shared_workers().alone(function, subject, *args, timeout_s=timeout_s or self.timeout_s)

    @contextmanager
    def _in_folder(self) -> Iterator[StrategySubject]:
        """Give the subject a folder for one task, unless a check has given it one for several."""
        if self.folder:
            yield self
            return
        with tempfile.TemporaryDirectory(prefix="stratagem-task-") as folder:
            yield replace(self, folder=folder)

    # In a worker ------------------------------------------------------------------------------------

    def trainer(
        self, start_method: str | None = None, strategy: Strategy | None = None, **settings: Any
    ) -> Trainer:
        """Return a quiet trainer with this strategy, for `world_size` devices.

        Args:
            start_method: start method of the strategy object; None is the strategy's own.
            strategy: a strategy object that `make` returned, to use it again.
            settings: further arguments of the trainer.
        """
        from stratagem_trainer.trainer import Trainer

        quiet: dict[str, Any] = {
            "enable_progress_bar": False,
            "enable_checkpointing": False,
            "logger": False,
            "run_dir": self.folder,
            "seed": SEED,
        }
        selection = self._selection(start_method)
        if strategy is not None:
            selection = {**selection, "strategy": strategy, "strategy_options": {}}
        return Trainer(**selection, **{**quiet, **settings})

    def runtime(self, start_method: str | None = None, **settings: Any) -> Runtime:
        """Make a runtime with this strategy, for `world_size` devices."""
        from stratagem import Runtime

        return Runtime(**self._selection(start_method), **settings)

    def selection(self) -> dict[str, Any]:
        """Return what selects the strategy and the devices: keywords of `Runtime`, `Trainer` and `RunConfig`."""
        return self._selection(None)

    def _selection(self, start_method: str | None) -> dict[str, Any]:
        selection: dict[str, Any] = {"accelerator": self.accelerator, "devices": self.world_size}
        if isinstance(self.strategy, str) and start_method is None:
            return {**selection, "strategy": self.strategy, "strategy_options": self._options()}
        strategy = self.make()
        if start_method is not None:
            strategy.start_method = start_method
        return {**selection, "strategy": strategy}

    def make(self) -> Strategy:
        """Make a strategy object with the options of this check."""
        if not isinstance(self.strategy, str):
            return self.strategy(**self._options())
        found = load_catalogue().find("strategy", self.strategy)
        made: Strategy = found.load()(**{**found.options, **self._options()})
        return made

    def _options(self) -> dict[str, Any]:
        at_size = self.options_at.get(self.world_size, {})
        return {**self.options, **at_size, **self._here(self.options_for)}

    def _here(self, by_check: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the settings for the current check. Those for this world size override the others."""
        name, sized = self.check, f"{self.check}-{self.world_size}"
        return {**by_check.get(name, {}), **by_check.get(sized, {})}


SEED = 7
"""The seed of every run that has one."""
