"""Names that the project itself offers, and the distributions that have them: for hints, and for former names."""

_OFFERS: dict[str, dict[str, str]] = {
    "strategy": {
        "stratagem-single": "single single_device",
        "stratagem-ddp": "ddp ddp_spawn ddp_fork ddp_notebook ddp_find_unused_parameters_false "
        "ddp_find_unused_parameters_true ddp_fp16 ddp_bf16 ddp_powersgd ddp_post_local_sgd "
        "ddp_hierarchical_sgd",
        "stratagem-dp": "dp ddp2",
        "stratagem-diloco": "diloco streaming_diloco",
        "stratagem-bagua": "bagua bagua_async bagua_bytegrad bagua_decentralized bagua_low_precision_decentralized "
        "bagua_qadam",
        "stratagem-sharded": "ddp_sharded ddp_sharded_spawn ddp_fully_sharded",
        "stratagem-deepspeed": "deepspeed deepspeed_stage_1 deepspeed_stage_2 deepspeed_stage_2_offload "
        "deepspeed_stage_3 deepspeed_stage_3_offload deepspeed_stage_3_offload_nvme",
        "stratagem-fairscale": "fairscale_sharded fairscale_pipe",
        "stratagem-fsdp": "fsdp fsdp_offload fsdp_hybrid",
        "stratagem-horovod": "horovod",
        "stratagem-hpu": "hpu_parallel hpu_single",
        "stratagem-ipu": "ipu_strategy",
        "stratagem-model-parallel": "model_parallel context_parallel",
        "stratagem-pipeline": "pipeline",
        "stratagem-xla": "xla tpu tpu_spawn single_xla single_tpu xla_fsdp",
    },
    "accelerator": {
        "stratagem-cpu": "cpu",
        "stratagem-cuda": "cuda gpu",
        "stratagem-hpu": "hpu",
        "stratagem-ipu": "ipu",
        "stratagem-mps": "mps",
        "stratagem-torch": "torch",
        "stratagem-xla": "tpu xla",
    },
    "checkpoint": {"stratagem-checkpoint": "directory"},
    "environment": {
        "stratagem-clusters": "torchelastic kubeflow mpi lsf slurm env node",
        "stratagem-horovod": "horovod",
    },
    "extension": {"stratagem-memory-checkpoint": "peer_memory", "stratagem-report": "record"},
    "launcher": {"stratagem-launch": "elastic"},
    "logger": {"stratagem-trainer": "csv tensorboard wandb mlflow comet"},
    "place": {"stratagem-places": "local"}
    | {f"stratagem-{name}": name for name in ("kubernetes", "ray", "slurm")},
}
OFFERED: dict[str, dict[str, str]] = {
    kind: {name: distribution for distribution, names in homes.items() for name in names.split()}
    for kind, homes in _OFFERS.items()
}
"""Kind → name → distribution; a test holds it against the packages under plugins/."""

LAUNCHER_SIZES: dict[str, str] = {
    "SLURM_STEP_NUM_TASKS": "slurm",
    "OMPI_COMM_WORLD_SIZE": "mpi",
    "MV2_COMM_WORLD_SIZE": "mpi",
    "PMI_SIZE": "mpi",
    "JSM_NAMESPACE_SIZE": "lsf",
    "HOROVOD_SIZE": "horovod",
    "WORLD_SIZE": "env",
}
"""Variable with the number of processes that a launcher has started → the environment that reads its others."""

LAUNCHER_RANKS: dict[str, str] = {
    "RANK": "env",
    "LOCAL_RANK": "env",
    "NODE_RANK": "node",
    "GROUP_RANK": "node",
}
"""Variable with a rank among several → the environment that reads it."""

_HOMES: dict[str, dict[str, str]] = {
    "stratagem.sdk.collectives": {
        "stratagem_sharding.meshes": "mesh_of",
        "stratagem_sharding.traffic": "Observer watch_traffic",
    },
    "stratagem.sdk.deferred_init": {
        "stratagem_sharding.deferred_init": "Construction Materializer own_modules"
    },
    "stratagem.sdk.environments": {"stratagem_clusters.variables": "first_integer integer missing text"},
    "stratagem.sdk.loops": {"stratagem_trainer.data.sample": "sample_of"},
    "stratagem.sdk.processes": {
        "stratagem_launch": "LAUNCH_VARIABLE can_save_restart_state die_with folder_lock loads "
        "loopback_variables preload_fork_server restart_state save_restart_state sending",
    },
    "stratagem.sdk.runs": {"stratagem_cli.early": "preload_for"},
    "stratagem.sdk.selection": {
        "stratagem_clusters": "TorchElastic",
        "stratagem_clusters.by_hand": "node_rank_of",
    },
    "stratagem.sdk.shards": {
        "stratagem_sharding.kept_shards": "KeptShards Refill leave_shards",
        "stratagem_sharding.local_step": "LocalStep",
        "stratagem_sharding.module_snapshot": "ModuleSnapshot",
        "stratagem_sharding.shards": "padded_flat_shard row_shard",
        "stratagem_sharding.used_parameter": "parameter_used_in",
    },
    "stratagem.sdk.states": {
        "stratagem_checkpoint": "DirectoryCheckpointer describe",
        "stratagem_checkpoint.strict_json": "Count",
        "stratagem_sharding.optimizer_values": "share_values",
        "stratagem_sharding.replicated": "ReplicatedPrepared",
    },
    "stratagem.sdk.tensors": {
        "stratagem_sharding.batch_size": "batch_size_of",
        "stratagem_sharding.buckets": "broadcast_coalesced flattened_buckets gradients_of_any",
        "stratagem_sharding.chunks": "ChunkLogs merge split",
        "stratagem_sharding.equal_buffers": "EqualBuffers",
        "stratagem_sharding.part_of_batch": "part_of_batch refuse_in_chunk",
    },
    "stratagem.sdk.torch_private": {
        "stratagem_sharding.torch_private": "MODULE_TABLES backward_hooks own_buffers own_children own_parameters "
        "own_table own_tensors post_accumulate_hooks set_backward_hooks set_post_accumulate_hooks",
    },
    "stratagem.sdk.wrap_policies": {
        "stratagem_sharding.unit_dtypes": "refuse_mixed_dtypes",
        "stratagem_sharding.wrap_policy": "Policy callable_children "
        "modules_named recompute_activations units_among",
    },
}
MOVED: dict[str, dict[str, str]] = {
    former: {name: f"{home}:{name}" for home, names in homes.items() for name in names.split()}
    for former, homes in _HOMES.items()
}
"""Module of the sdk → name that plugins of API 2 import from it → "module:name" where that is now."""

OPTIMIZER_TRIAL = ("stratagem_sharding.optimizer_trial", "why_not")
"""What tries whether an optimizer can step shards."""
