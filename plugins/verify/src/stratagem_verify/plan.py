"""`Plan`: what is verified, and how to make its runs under the strategy and in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stratagem_testing.subject import StrategySubject

from stratagem import Capabilities, Strategy
from stratagem.sdk.catalogue import FEATURES

if TYPE_CHECKING:
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer

NOT_OURS = (
    *("callbacks", "logger", "log_every_n_steps", "enable_progress_bar", "enable_checkpointing", "run_dir"),
    *("max_epochs", "max_steps", "val_check_interval", "check_val_every_n_epoch", "limit_test_batches"),
    *("limit_predict_batches", "num_nodes", "node_rank", "rdzv_endpoint", "rdzv_backend", "rdzv_conf"),
    *(
        "min_epochs",
        "min_steps",
        "max_time",
        "num_sanity_val_steps",
        "fast_dev_run",
        "default_root_dir",
        "log_dir",
    ),
    *("max_restarts", "environment", "strategy", "strategy_options", "accelerator", "devices"),
)
"""Settings of a trainer that the plan sets itself, or that have no meaning for its runs."""


class OneProcess(Strategy):
    """Trains on one device, as plain PyTorch does, for comparison."""

    capabilities = Capabilities(features=frozenset(FEATURES) - {"collective_forward", "several_devices"})


@dataclass(frozen=True)
class Plan:
    """A module, a strategy and settings. Frozen and picklable: every rank has a copy."""

    subject: StrategySubject
    """The strategy, its options, the accelerator, and the number of devices."""
    make_module: Callable[[], Module]
    """Makes the user's module with its data, in each worker."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further keywords of `Trainer`."""
    steps: int = 6
    """Number of optimizer steps of a run."""

    @property
    def accumulate(self) -> int:
        """Number of micro-batches per optimizer step and rank."""
        return int(self.settings.get("accumulate_grad_batches", 1))

    @property
    def precision(self) -> str:
        """Name of the precision."""
        return str(self.settings.get("precision", "32-true"))

    def trainer(self, name: str, callbacks: Sequence[Callback], **settings: Any) -> Trainer:
        """Return the trainer of a run under the strategy. Called in a worker."""
        return self.subject.trainer(**self._keywords(name, callbacks, settings))

    def trainer_alone(self, name: str, callbacks: Sequence[Callback], **settings: Any) -> Trainer:
        """Return the trainer of a run in one process. Called in a worker."""
        alone = replace(
            self.subject, strategy=OneProcess, options={}, options_for={}, options_at={}, world_size=1
        )
        # In training it gets the ranks' recorded batches, so that the limit is in them already.
        own = {**self._keywords(name, callbacks, {}), "limit_train_batches": None}
        return alone.trainer(**{**own, **settings})

    def path(self, name: str) -> str:
        """Return the path of a file or folder of a run."""
        return f"{self.subject.folder}/{name}"

    def _keywords(self, name: str, callbacks: Sequence[Callback], settings: dict[str, Any]) -> dict[str, Any]:
        own = {key: value for key, value in self.settings.items() if key not in NOT_OURS}
        return {
            **own,
            "callbacks": list(callbacks),
            "max_steps": self.steps,
            "limit_val_batches": 0,
            "run_dir": self.path(f"run-{name}"),
            **settings,
        }
