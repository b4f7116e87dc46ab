"""Lightning's private methods. Programs that override them expect calls from its trainer, which don't happen here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratagem.errors import ConfigError

_HOOKS = "its public hooks, in a LightningModule or a Callback, change what a run does"
_CHECKPOINTS = (
    "its arguments say when and what it saves; a Callback may call trainer.save_checkpoint at any other time"
)
_STOPPING = "a Callback may set trainer.should_stop = True in any hook"
_LOGGER = "derive from Logger and write log_metrics and log_hyperparams"
_OWN = "write a Callback with the public hooks"
_BAR = "get_metrics says what a bar shows, and a Callback draws its own"
_PROFILER = "derive from Profiler and write start, stop and summary"

_NOT_THE_PROGRAMS = ("stratagem", "builtins", "torch.", "lightning.", "pytorch_lightning.")

PRIVATE: dict[str, tuple[tuple[str, ...], str]] = {
    "Trainer": (
        (
            *("_active_loop", "_evaluation_loop", "_fit_impl", "_predict_impl", "_results", "_run"),
            *("_run_sanity_check", "_run_stage", "_teardown", "_test_impl", "_validate_impl"),
        ),
        _HOOKS,
    ),
    "LightningModule": (
        (
            *("_apply_batch_transfer_handler", "_call_batch_hook", "_log_dict_through_fabric"),
            *("_on_before_batch_transfer", "_verify_is_manual_optimization"),
        ),
        _HOOKS,
    ),
    "HyperparametersMixin": (
        ("_set_hparams", "_to_hparams_dict"),
        "save_hyperparameters(…) takes what hyperparameters are kept",
    ),
    "Callback": (("_generate_state_key", "_legacy_state_key"), "override state_key"),
    "ModelCheckpoint": (
        (
            *("_find_last_checkpoints", "_format_checkpoint_name", "_get_metric_interpolated_filepath_name"),
            *("_link_checkpoint", "_monitor_candidates", "_remove_checkpoint", "_save_checkpoint"),
            *("_save_last_checkpoint", "_save_monitor_checkpoint", "_save_none_monitor_checkpoint"),
            *("_save_topk_checkpoint", "_should_remove_checkpoint", "_should_save_on_exception"),
            *("_should_save_on_train_epoch_end", "_should_skip_saving_checkpoint", "_update_best_and_save"),
        ),
        _CHECKPOINTS,
    ),
    "EarlyStopping": (
        (
            *("_evaluate_stopping_criteria", "_improvement_message", "_log_info"),
            *("_run_early_stopping_check", "_should_skip_check", "_validate_condition_metric"),
        ),
        _STOPPING,
    ),
    "Timer": (("_check_time_remaining",), _STOPPING),
    "LearningRateMonitor": (
        (
            *("_add_prefix", "_add_suffix", "_check_duplicates_and_update_name"),
            *("_duplicate_param_group_names", "_extract_lr", "_extract_momentum", "_extract_stats"),
            *("_extract_weight_decay", "_find_names_from_optimizers", "_find_names_from_schedulers"),
            *("_get_optimizer_stats", "_remap_keys"),
        ),
        "a Callback may log what trainer.optimizers have in their param_groups",
    ),
    "BaseFinetuning": (
        ("_apply_mapping_to_param_groups", "_store"),
        "override freeze_before_training and finetune_function",
    ),
    "ModelPruning": (
        (
            *("_apply_global_pruning", "_apply_local_pruning", "_copy_param", "_create_pruning_fn"),
            *("_get_pruned_stats", "_is_pruning_method", "_log_sparsity_stats"),
            *("_make_pruning_permanent_on_state_dict", "_resolve_global_kwargs", "_run_pruning"),
            "_wrap_pruning_fn",
        ),
        "pruning_fn and parameters_to_prune say what is pruned",
    ),
    "StochasticWeightAveraging": (
        ("_clear_schedulers", "_load_average_model_state"),
        "avg_fn is an argument; WeightAveraging is for other averages",
    ),
    "DeviceStatsMonitor": (("_get_and_log_device_stats",), _OWN),
    "ModelSummary": (("_summary",), _OWN),
    "ThroughputMonitor": (("_compute", "_start", "_update"), _OWN),
    "RichProgressBar": (
        (
            *("_add_task", "_get_train_description", "_init_progress", "_initialize_train_progress_bar_id"),
            *("_reset_progress_bar_ids", "_should_update", "_stop_progress", "_update", "_update_metrics"),
        ),
        _BAR,
    ),
    "TQDMProgressBar": (("_resolve_refresh_rate", "_should_update"), _BAR),
    "CSVLogger": (("_get_next_version",), _LOGGER),
    "TensorBoardLogger": (("_get_next_version", "_sanitize_params"), _LOGGER),
    "WandbLogger": (("_scan_and_log_checkpoints",), _LOGGER),
    "MLFlowLogger": (("_scan_and_log_checkpoints",), _LOGGER),
    "CometLogger": (("_create_experiment",), _LOGGER),
    "Profiler": (("_prepare_filename", "_prepare_streams", "_rank_zero_info", "_stats_to_str"), _PROFILER),
    "SimpleProfiler": (("_make_report", "_make_report_extended"), _PROFILER),
    "AdvancedProfiler": (("_dump_stats",), _PROFILER),
    "PyTorchProfiler": (
        (
            *("_cache_functions_events", "_create_profiler", "_create_profilers", "_default_activities"),
            *("_default_schedule", "_delete_profilers", "_init_kineto", "_should_override_schedule"),
            "_total_steps",
        ),
        _PROFILER,
    ),
}
"""Class → its private methods in Lightning 2.5, and what to write instead. Subclasses also have their parents'."""


def refuse_private(objects: Iterable[Any]) -> None:
    """Refuse objects whose classes override private methods of Lightning.

    Raises:
        ConfigError: with the name of the method, and what to write instead.
    """
    for each in objects:
        kinds = type(each).__mro__
        known = {
            name: (kind.__name__, why)
            for kind in reversed(kinds)
            if kind.__name__ in PRIVATE
            for names, why in [PRIVATE[kind.__name__]]
            for name in names
        }
        # Includes mixins that don't derive from Lightning: they override the methods of the classes after them.
        own = [kind for kind in kinds if not kind.__module__.startswith(_NOT_THE_PROGRAMS)]
        for kind in own:
            for name in sorted(vars(kind).keys() & known.keys()):
                owner, why = known[name]
                raise ConfigError(
                    f"{kind.__qualname__} defines {name}, a private method of Lightning's {owner}, which nothing "
                    f"calls here: {why}; rename it if you call it yourself"
                )
