"""Names that the project itself offers, and the distributions to install for them: for hints only."""

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
        "fsdp": "stratagem-fsdp",
        "fsdp_offload": "stratagem-fsdp",
        "fsdp_hybrid": "stratagem-fsdp",
    },
    "accelerator": {
        "cpu": "stratagem-cpu",
        "cuda": "stratagem-cuda",
        "gpu": "stratagem-cuda",
        "mps": "stratagem-mps",
        "torch": "stratagem-torch",
    },
}
"""Kind → name → distribution; a test holds it against the packages under plugins/."""
