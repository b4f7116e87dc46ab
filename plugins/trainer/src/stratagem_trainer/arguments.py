"""Arguments of other trainers that this trainer doesn't have, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratagem.errors import ConfigError, nearest

REPLACED: Mapping[str, str] = {
    "amp_backend": "pass precision, such as '16-mixed'",
    "amp_level": "pass precision, such as '16-mixed'",
    "auto_lr_find": "use the callback LearningRateFinder",
    "auto_scale_batch_size": "use the callback BatchSizeFinder",
    "automatic_optimization": "set automatic_optimization in the module",
    "checkpoint_callback": "pass enable_checkpointing, or callbacks=ModelCheckpoint(…)",
    "early_stop_callback": "pass callbacks=EarlyStopping(…)",
    "flush_logs_every_n_steps": "pass it to the logger: CSVLogger(flush_every_s=…)",
    "log_gpu_memory": "use the callback DeviceStatsMonitor",
    "max_nb_epochs": "it is now called max_epochs",
    "min_nb_epochs": "it is now called min_epochs",
    "move_metrics_to_cpu": "leave it out: logged values are kept as numbers",
    "multiple_trainloader_mode": "pass CombinedLoader(loaders, mode=…) as train_dataloaders",
    "nb_sanity_val_steps": "it is now called num_sanity_val_steps",
    "overfit_pct": "it is now called overfit_batches",
    "prepare_data_per_node": "set prepare_data_per_node in the DataModule",
    "process_position": "leave it out: there is one progress bar",
    "progress_bar_refresh_rate": "pass enable_progress_bar, or callbacks=ProgressBar(…)",
    "reload_dataloaders_every_epoch": "pass reload_dataloaders_every_n_epochs=1",
    "row_log_interval": "it is now called log_every_n_steps",
    "stochastic_weight_avg": "use the callback StochasticWeightAveraging",
    "test_percent_check": "it is now called limit_test_batches",
    "track_grad_norm": "log the norm in on_before_optimizer_step",
    "train_percent_check": "it is now called limit_train_batches",
    "truncated_bptt_steps": "optimize manually, and detach hidden states in training_step",
    "val_percent_check": "it is now called limit_val_batches",
    "weights_save_path": "pass default_root_dir, or callbacks=ModelCheckpoint(dirpath=…)",
    "weights_summary": "it is now called enable_model_summary",
}
"""Argument → what to use instead."""


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that the trainer doesn't have.

    Args:
        given: names of the further arguments that were passed.
        known: names of all arguments.

    Raises:
        ConfigError: names the argument, and what to use instead or the nearest ones.
    """
    names, given = list(known), list(given)
    refuse_replaced(given)
    for name in given:
        if name not in names:
            raise ConfigError(f"Trainer has no argument {name!r}; {nearest(name, names)}")


def refuse_replaced(given: Iterable[str]) -> None:
    """Refuse arguments of other trainers.

    Raises:
        ConfigError: names the argument, and what to use instead.
    """
    for name in given:
        if name in REPLACED:
            raise ConfigError(f"Trainer has no argument {name!r}: {REPLACED[name]}")


def refuse_with_barebones(given: Mapping[str, Any]) -> None:
    """Refuse arguments that turn on what `barebones` turns off.

    Args:
        given: arguments by name.

    Raises:
        ConfigError: names the arguments.
    """
    wanted = [
        f"{name}={value!r}"
        for name, value in given.items()
        if value not in (None, False, 0) or (name == "logger" and value is not None and value is not False)
    ]
    if wanted:
        raise ConfigError(
            f"barebones=True measures only the loop, without {', '.join(wanted)}: leave out one or the other"
        )
