"""`SettingsView`: what a trainer was told, under the names that Lightning's trainer has for it."""

from __future__ import annotations

from typing import Any

import stratagem_trainer.trainer

from stratagem.sdk.runs import assemble


def _setting(name: str, default: Any = None) -> Any:
    def read(trainer: SettingsView) -> Any:
        value = getattr(trainer.settings, name)
        return default if value is None else value

    return property(read, doc=f"As `Trainer({name}=…)`.")


class SettingsView(stratagem_trainer.trainer.Trainer):
    """A trainer whose settings can be read: they don't change, so make another trainer for other ones."""

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

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches per optimizer step; of the current epoch while a fit runs."""
        is_fit = self._state is not None and self._state.stage == "fit"
        return self.state.micro_batches if is_fit else self.settings.accumulate_grad_batches

    @property
    def num_devices(self) -> int:
        """Devices of this machine that a run uses."""
        return super().num_devices if self.is_live else len(assemble(self.config).devices)

    @property
    def num_nodes(self) -> int:
        """Machines of a run."""
        return super().num_nodes if self.is_live else int(assemble(self.config).plan.num_nodes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return super().world_size if self.is_live else self.num_nodes * self.num_devices
