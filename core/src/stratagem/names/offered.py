"""Names that the project itself offers, and the distributions that have them: for hints, and for former names."""

OFFERED: dict[str, dict[str, str]] = {
    "strategy": {
        "single": "stratagem-single",
        "single_device": "stratagem-single",
        "ddp": "stratagem-ddp",
        "ddp_spawn": "stratagem-ddp",
        "ddp_fork": "stratagem-ddp",
        "ddp_notebook": "stratagem-ddp",
        "ddp_find_unused_parameters_false": "stratagem-ddp",
        "ddp_find_unused_parameters_true": "stratagem-ddp",
        "ddp_fp16": "stratagem-ddp",
        "ddp_bf16": "stratagem-ddp",
        "ddp_powersgd": "stratagem-ddp",
        "ddp_post_local_sgd": "stratagem-ddp",
        "ddp_hierarchical_sgd": "stratagem-ddp",
        "dp": "stratagem-dp",
        "ddp2": "stratagem-dp",
        "ddp_sharded": "stratagem-sharded",
        "ddp_sharded_spawn": "stratagem-sharded",
        "ddp_fully_sharded": "stratagem-sharded",
        "deepspeed": "stratagem-deepspeed",
        "deepspeed_stage_1": "stratagem-deepspeed",
        "deepspeed_stage_2": "stratagem-deepspeed",
        "deepspeed_stage_2_offload": "stratagem-deepspeed",
        "deepspeed_stage_3": "stratagem-deepspeed",
        "deepspeed_stage_3_offload": "stratagem-deepspeed",
        "deepspeed_stage_3_offload_nvme": "stratagem-deepspeed",
        "fsdp": "stratagem-fsdp",
        "fsdp_offload": "stratagem-fsdp",
        "fsdp_hybrid": "stratagem-fsdp",
        "model_parallel": "stratagem-model-parallel",
        "pipeline": "stratagem-pipeline",
        "xla": "stratagem-xla",
        "tpu": "stratagem-xla",
        "tpu_spawn": "stratagem-xla",
        "single_xla": "stratagem-xla",
        "single_tpu": "stratagem-xla",
        "xla_fsdp": "stratagem-xla",
    },
    "accelerator": {
        "cpu": "stratagem-cpu",
        "cuda": "stratagem-cuda",
        "gpu": "stratagem-cuda",
        "mps": "stratagem-mps",
        "torch": "stratagem-torch",
        "tpu": "stratagem-xla",
        "xla": "stratagem-xla",
    },
    "environment": {
        "kubeflow": "stratagem-clusters",
        "mpi": "stratagem-clusters",
        "lsf": "stratagem-clusters",
        "slurm": "stratagem-clusters",
    },
    "launcher": {"elastic": "stratagem-launch"},
}
"""Kind → name → distribution; a test holds it against the packages under plugins/."""

LAUNCHER_SIZES: dict[str, str] = {
    "SLURM_STEP_NUM_TASKS": "slurm",
    "OMPI_COMM_WORLD_SIZE": "mpi",
    "MV2_COMM_WORLD_SIZE": "mpi",
    "PMI_SIZE": "mpi",
    "JSM_NAMESPACE_SIZE": "lsf",
}
"""Variable with the number of processes that a launcher has started → the environment that reads its others."""

MOVED: dict[str, dict[str, str]] = {
    "stratagem.sdk.processes": {
        name: f"stratagem_launch:{name}"
        for name in (
            "die_with",
            "folder_lock",
            "loads",
            "loopback_variables",
            "preload_fork_server",
            "sending",
        )
    },
}
"""Module → former name → "module:name" of another distribution's, for `replaced_names`."""
