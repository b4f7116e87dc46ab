"""Refuses overridden methods of Lightning's callbacks that nothing calls here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratagem.errors import ConfigError

_BARS = (
    *("init_predict_tqdm", "init_sanity_tqdm", "init_test_tqdm", "init_train_tqdm", "init_validation_tqdm"),
    *("configure_columns", "enable", "disable", "print", "refresh", "has_dataloader_changed"),
    *("sanity_check_description", "train_description", "validation_description", "test_description"),
    *("predict_description", "total_train_batches", "total_val_batches", "reset_dataloader_idx_tracker"),
)
_BAR = "get_metrics says what a bar shows, and a Callback draws its own"
UNCALLED: dict[str, dict[str, str]] = {
    "ProgressBar": dict.fromkeys(_BARS, _BAR),
    "ModelCheckpoint": dict.fromkeys(
        ("check_monitor_top_k", "file_exists", "CHECKPOINT_NAME_LAST", "FILE_EXTENSION"),
        "filename and save_last are what names are made of",
    )
    | dict.fromkeys(
        ("CHECKPOINT_JOIN_CHAR", "CHECKPOINT_EQUALS_CHAR", "STARTING_VERSION", "format_checkpoint_name"),
        "filename has the names: auto_insert_metric_name=False leaves out what it doesn't say",
    ),
    "EarlyStopping": dict.fromkeys(
        ("mode_dict", "monitor_op", "order_dict"), 'mode="min" or mode="max" says which value is better'
    ),
    "BatchSizeFinder": {"scale_batch_size": "override before_launch, or call Tuner.scale_batch_size"},
    "LearningRateFinder": {"lr_find": "override before_launch, or call Tuner.lr_find"},
    "GradientAccumulationScheduler": dict.fromkeys(
        ("get_accumulate_grad_batches", "going_to_accumulate_grad_batches"), "scheduling has all of it"
    ),
    "ModelPruning": dict.fromkeys(
        (
            *("apply_lottery_ticket_hypothesis", "apply_pruning", "filter_parameters_to_prune"),
            *("make_pruning_permanent", "sanitize_parameters_to_prune"),
        ),
        "pruning_fn and parameters_to_prune say what is pruned",
    ),
    "ModelSummary": {"summarize": "a Callback prints its own"},
    "StochasticWeightAveraging": dict.fromkeys(
        (
            *("avg_fn", "pl_module_contains_batch_norm", "reset_batch_norm_and_save_state"),
            *("reset_momenta", "transfer_weights", "update_parameters"),
        ),
        "avg_fn is an argument; WeightAveraging is for your own averages",
    ),
}
"""Class → its methods that Lightning calls and nothing calls here → what to do instead."""


def refuse_uncalled(callbacks: Iterable[Any]) -> None:
    """Refuse callbacks whose classes override methods that aren't called.

    Raises:
        ConfigError: with the name of the method.
    """
    for callback in callbacks:
        kinds = type(callback).__mro__
        names = {name: why for kind in kinds for name, why in UNCALLED.get(kind.__name__, {}).items()}
        own = (kind for kind in kinds if not kind.__module__.startswith(("stratagem", "builtins")))
        for kind in own:
            for name in vars(kind).keys() & names.keys():
                raise ConfigError(
                    f"{kind.__qualname__} overrides {name}, which nothing calls here: {names[name]}"
                )
