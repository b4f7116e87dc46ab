"""`SettingsView`: a trainer's settings under Lightning's names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import stratagem_trainer.trainer
from stratagem_trainer.loggers.base import Logger
from stratagem_trainer.loggers.named import checked_loggers
from stratagem_trainer.rank_zero import rank_zero_only

from stratagem.errors import ConfigError
from stratagem.sdk.runs import assemble
from stratagem_lightning.absent import FIT_LIMITS
from stratagem_lightning.loggers import default_logger
from stratagem_lightning.missing import LoopView


def _setting(name: str, default: Any = None) -> Any:
    def read(trainer: SettingsView) -> Any:
        value = getattr(trainer.settings, name)
        return default if value is None else value

    def change(trainer: SettingsView, value: Any) -> None:
        trainer.change(name, value)

    return property(read, change, doc=f"As `Trainer({name}=…)`; may be set where no stage runs.")


class SettingsView(stratagem_trainer.trainer.Trainer):
    """A trainer whose settings can be read, and changed while no stage runs."""

    log_every_n_steps = _setting("log_every_n_steps", 50)
    gradient_clip_val = _setting("gradient_clip_val")
    limit_train_batches = _setting("limit_train_batches", 1.0)
    limit_val_batches = _setting("limit_val_batches", 1.0)
    limit_test_batches = _setting("limit_test_batches", 1.0)
    limit_predict_batches = _setting("limit_predict_batches", 1.0)
    val_check_interval = _setting("val_check_interval", 1.0)
    check_val_every_n_epoch = _setting("check_val_every_n_epoch")
    num_sanity_val_steps = _setting("num_sanity_val_steps", 0)
    overfit_batches = _setting("overfit_batches", 0.0)
    reload_dataloaders_every_n_epochs = _setting("reload_dataloaders_every_n_epochs")
    barebones = _setting("barebones")
    min_epochs = _setting("min_epochs", 0)
    fast_dev_run: int | bool = False
    gradient_clip_algorithm: str | None = None

    def change(self, name: str, value: Any) -> None:
        """Change a setting for the following stages.

        Raises:
            ConfigError: a stage runs, or the value isn't allowed.
        """
        self._refuse_while_live(name, value)
        self.settings = replace(self.settings, **{name: value})

    def _refuse_while_live(self, name: str, value: Any) -> None:
        if self.is_live:
            raise ConfigError(
                f"trainer.{name} can't be set to {value!r} while a stage runs, which has read its settings: set it "
                "before fit, validate, test or predict; trainer.should_stop = True ends a fit"
            )

    @property
    def accumulate_grad_batches(self) -> int:
        """Number of batches per optimizer step; during a fit, in the current epoch."""
        live = self.current_stage.live
        is_fit = live is not None and live.stage == "fit"
        return self.state.micro_batches if is_fit else self.settings.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        if self.is_live:
            raise ConfigError(
                f"trainer.accumulate_grad_batches can't be set to {value!r} while a stage runs: use the callback "
                "GradientAccumulationScheduler"
            )
        self.change("accumulate_grad_batches", value)

    @property
    def fit_loop(self) -> LoopView:
        """The limits of a fit, to read and to set: `max_epochs`, `min_epochs`, `max_steps` and `min_steps`."""
        return LoopView(self, "fit_loop", FIT_LIMITS)

    @property
    def loggers(self) -> list[Logger]:
        """The loggers, as in `Trainer(logger=…)`. They can be set while no stage runs."""
        return super().loggers

    @loggers.setter
    def loggers(self, value: list[Logger] | None) -> None:
        self._refuse_while_live("loggers", value)
        self.given_loggers = checked_loggers(list(value) if value else False)

    @property
    def logger(self) -> Logger | None:
        """The first logger; None on ranks other than 0. It can be set while no stage runs."""
        return super().logger

    @logger.setter
    def logger(self, value: Logger | bool | None) -> None:
        self._refuse_while_live("logger", value)
        if value is True:
            value = default_logger(self.settings.default_root_dir)
        self.given_loggers = checked_loggers(value or False)

    @property
    def global_rank(self) -> int:
        """This process's rank among all; outside of a stage, from a launcher's variables."""
        return super().global_rank if self.is_live else rank_zero_only.rank

    @property
    def num_devices(self) -> int:
        """Number of this machine's devices that a run uses."""
        return super().num_devices if self.is_live else len(assemble(self.config).devices)

    @property
    def num_nodes(self) -> int:
        """Number of machines of a run."""
        return super().num_nodes if self.is_live else int(assemble(self.config).plan.num_nodes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return super().world_size if self.is_live else self.num_nodes * self.num_devices
