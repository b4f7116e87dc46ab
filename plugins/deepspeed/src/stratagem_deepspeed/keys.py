"""Keys of a DeepSpeed 0.19 configuration. The engine silently ignores unknown keys at the top level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stratagem import ConfigError
from stratagem.errors import nearest

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

TOP = frozenset(
    {
        *BATCH,
        "activation_checkpointing",
        "aio",
        "bf16",
        "bfloat16",
        "checkpoint",
        "checkpoint_writer",
        "comet",
        "comms_logger",
        "communication_data_type",
        "compile",
        "csv_monitor",
        "data_efficiency",
        "data_types",
        "dataloader_drop_last",
        "datastates_ckpt",
        "disable_allgather",
        "disable_python_gc",
        "dump_state",
        "flops_profiler",
        "fp16",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "log_level",
        "memory_breakdown",
        "optimizer",
        "prescale_gradients",
        "scheduler",
        "seq_parallel_communication_data_type",
        "steps_per_print",
        "tensorboard",
        "timers",
        "torch_autocast",
        "wall_clock_breakdown",
        "wandb",
        "weight_quantization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    }
)

ELSEWHERE = {
    "amp": "it is gone from DeepSpeed: choose the run's precision, as precision='bf16-mixed'",
    "autotuning": "it needs DeepSpeed's own launcher: run `deepspeed --autotuning` for it",
    "compression_training": "it is gone from DeepSpeed",
    "curriculum_learning": "it is now called data_efficiency.data_sampling.curriculum_learning",
    "data_parallel_size": "ranks hold all data in parallel here: leave it out",
    "elasticity": "it is gone from DeepSpeed: --max-restarts restarts workers",
    "eigenvalue": "it is gone from DeepSpeed",
    "expert_parallel": "splitting layers over ranks isn't part of this strategy",
    "graph_harvesting": "it is gone from DeepSpeed",
    "hybrid_engine": "its engine for inference isn't part of this strategy",
    "managed_gradient_accumulation": "accumulate_grad_batches of the run does that",
    "nebula": "it is gone from DeepSpeed",
    "pipeline": "pipelines aren't part of this strategy",
    "progressive_layer_drop": "it is gone from DeepSpeed",
    "quantize_training": "it is gone from DeepSpeed",
    "sequence_parallel_size": "splitting sequences isn't part of this strategy",
    "sparse_attention": "it is gone from DeepSpeed",
    "sparse_gradients": "it is gone from DeepSpeed: embeddings made with sparse=True need no setting",
    "tensor_parallel": "splitting layers over ranks isn't part of this strategy",
}
"""Top-level keys that DeepSpeed has or had and that can't be used here, with what to do instead."""

ZERO = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "allgather_sequential",
        "compute_grad_norm",
        "contiguous_gradients",
        "elastic_checkpoint",
        "enable_sanity_checks",
        "gather_16bit_weights_on_model_save",
        "ignore_unused_parameters",
        "leaf_module",
        "load_from_fp32_weights",
        "log_trace_cache_warnings",
        "max_live_parameters",
        "max_reuse_distance",
        "memory_efficient_linear",
        "model_persistence_threshold",
        "module_granularity_threshold",
        "offload_optimizer",
        "offload_param",
        "overlap_comm",
        "override_module_apply",
        "param_persistence_threshold",
        "parameter_alignment",
        "pipeline_loading_checkpoint",
        "prefetch_bucket_size",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "save_muon_momentum_buffer_in_memory",
        "stage",
        "stage3_allgather_sequential",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
        "use_all_reduce_for_fetch_params",
        "use_multi_rank_bucket_allreduce",
        "zenflow",
        "zero_hpz_partition_size",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_weights",
    }
)

SECTIONS: Mapping[tuple[str, ...], frozenset[str]] = {
    ("zero_optimization",): ZERO,
    ("zero_optimization", "offload_param"): frozenset(
        {"buffer_count", "buffer_size", "device", "max_in_cpu", "nvme_path", "pin_memory"}
    ),
    ("zero_optimization", "offload_optimizer"): frozenset(
        {
            "buffer_count",
            "cpuadam_cores_perc",
            "device",
            "fast_init",
            "nvme_path",
            "pin_memory",
            "pipeline_read",
            "pipeline_write",
            "ratio",
            "super_offload",
        }
    ),
    ("fp16",): frozenset(
        {
            "auto_cast",
            "consecutive_hysteresis",
            "enabled",
            "fp16_master_weights_and_grads",
            "hysteresis",
            "initial_scale_power",
            "loss_scale",
            "loss_scale_window",
            "min_loss_scale",
        }
    ),
    ("bf16",): frozenset(
        {
            "bf16_master_weights_and_grads",
            "bf16_optimizer_states",
            "check_grad_overflow",
            "enabled",
            "immediate_grad_update",
        }
    ),
    ("activation_checkpointing",): frozenset(
        {
            "contiguous_memory_optimization",
            "cpu_checkpointing",
            "number_checkpoints",
            "partition_activations",
            "profile",
            "synchronize_checkpoint_boundary",
        }
    ),
    ("aio",): frozenset(
        ["block_size", "intra_op_parallelism", "overlap_events", "queue_depth", "single_submit", "use_gds"]
    ),
    ("optimizer",): frozenset({"type", "params", "legacy_fusion"}),
    ("scheduler",): frozenset({"type", "params"}),
}

RENAMED: Mapping[tuple[str, ...], Mapping[str, str]] = {
    ("zero_optimization",): {
        "cpu_offload": 'offload_optimizer: {"device": "cpu"}',
        "cpu_offload_param": 'offload_param: {"device": "cpu"}',
        "cpu_offload_use_pin_memory": "pin_memory in offload_optimizer and offload_param",
        "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
        "legacy_stage1": "nothing: that implementation is gone",
        "mics_shard_size": "nothing: it is gone from DeepSpeed",
        "mics_hierarchical_params_gather": "nothing: it is gone from DeepSpeed",
        "zeropp_loco_param": "nothing: it is gone from DeepSpeed",
    },
    ("aio",): {"thread_count": "intra_op_parallelism"},
}


def check(config: Mapping[str, Any], source: str) -> None:
    """Refuse keys that the engine would ignore, or that this strategy can't follow.

    Args:
        config: a whole configuration.
        source: its name in messages.

    Raises:
        ConfigError: names the first such key, and the nearest one that exists.
    """
    for key in config:
        if key in ELSEWHERE:
            raise ConfigError(f"{source} has the key {key!r}, which can't be used here: {ELSEWHERE[key]}")
        if key not in TOP:
            raise ConfigError(f"{source} has the key {key!r}, which DeepSpeed doesn't have{_near(key, TOP)}")
    for path, section in _sections(config):
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"{source} has {'.'.join(path)} = {section!r}, which is a {type(section).__name__}: it is to be a "
                "mapping of keys to values"
            )
        for key in section:
            if key in RENAMED.get(path, {}):
                today = RENAMED[path][key]
                raise ConfigError(f"{source} has {'.'.join((*path, key))}, which is now called {today}")
            if key not in SECTIONS[path]:
                near = _near(key, SECTIONS[path])
                raise ConfigError(
                    f"{source} has {'.'.join((*path, key))}, which DeepSpeed doesn't have{near}"
                )


def _sections(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path in SECTIONS:
        section: Any = config
        for step in path:
            section = section.get(step) if isinstance(section, Mapping) else None
        if section is not None:
            yield path, section


def _near(key: str, known: frozenset[str]) -> str:
    return f": {nearest(key, sorted(known), 'see https://www.deepspeed.ai/docs/config-json/')}"
