"""The table from which `stratagem_lightning` is built: Lightning's names, and what they refer to.

A key is a module below `stratagem_lightning`. Its value has for each name "module:attribute", or only "module" if the
attribute has the same name.
"""

from __future__ import annotations

_ROOT = {
    "__version__": "stratagem",
    "Callback": "stratagem_trainer.callbacks",
    "Fabric": "stratagem_lightning.fabric_object",
    "LightningDataModule": "stratagem_lightning.datamodule",
    "LightningModule": "stratagem_lightning.module",
    "Trainer": "stratagem_lightning.trainer",
    "seed_everything": "stratagem_trainer.stage.seeding",
}
_CALLBACKS = {
    **dict.fromkeys(
        (
            "Callback",
            "GradientAccumulationScheduler",
            "LambdaCallback",
            "LearningRateMonitor",
            "ModelSummary",
            "OnExceptionCheckpoint",
            "ProgressBar",
            "RichProgressBar",
            "TQDMProgressBar",
            "Timer",
        ),
        "stratagem_trainer.callbacks",
    ),
    **dict.fromkeys(
        (
            "BackboneFinetuning",
            "BaseFinetuning",
            "BatchSizeFinder",
            "DeviceStatsMonitor",
            "EMAWeightAveraging",
            "LearningRateFinder",
            "ModelPruning",
            "StochasticWeightAveraging",
            "ThroughputMonitor",
            "WeightAveraging",
        ),
        "stratagem_callbacks",
    ),
    **dict.fromkeys(
        ("BasePredictionWriter", "EarlyStopping", "ModelCheckpoint"), "stratagem_lightning.callbacks"
    ),
    "Checkpoint": "stratagem_trainer.callbacks:ModelCheckpoint",
    "RichModelSummary": "stratagem_trainer.callbacks:ModelSummary",
}
_LOGGERS = {
    "CSVLogger": "stratagem_lightning.loggers",
    "CometLogger": "stratagem_lightning.loggers",
    "Logger": "stratagem_trainer.loggers",
    "MLFlowLogger": "stratagem_lightning.loggers",
    "TensorBoardLogger": "stratagem_lightning.loggers",
    "WandbLogger": "stratagem_lightning.loggers",
}
_STRATEGIES = {
    "BaguaStrategy": "stratagem_bagua",
    "DDP2Strategy": "stratagem_dp",
    "DDPFullyShardedNativeStrategy": "stratagem_fsdp:FSDPStrategy",
    "DDPFullyShardedStrategy": "stratagem_sharded",
    "DDPShardedStrategy": "stratagem_sharded",
    "DDPSpawnShardedStrategy": "stratagem_lightning.spawn_strategies",
    "DDPSpawnStrategy": "stratagem_lightning.spawn_strategies",
    "DDPStrategy": "stratagem_ddp",
    "DataParallelStrategy": "stratagem_dp",
    "DeepSpeedStrategy": "stratagem_deepspeed",
    "FSDPStrategy": "stratagem_fsdp",
    "HPUParallelStrategy": "stratagem_hpu",
    "HorovodStrategy": "stratagem_horovod",
    "IPUStrategy": "stratagem_ipu",
    "ModelParallelStrategy": "stratagem_model_parallel",
    "ParallelStrategy": "stratagem",
    "SingleDeviceStrategy": "stratagem_single",
    "SingleDeviceXLAStrategy": "stratagem_xla",
    "SingleHPUStrategy": "stratagem_hpu",
    "SingleTPUStrategy": "stratagem_xla:SingleDeviceXLAStrategy",
    "Strategy": "stratagem",
    "StrategyRegistry": "stratagem_lightning.registries",
    "TPUSpawnStrategy": "stratagem_xla:XLAStrategy",
    "XLAFSDPStrategy": "stratagem_xla",
    "XLAStrategy": "stratagem_xla",
}
_PARTS = "stratagem_lightning.run_parts"
_ENVIRONMENTS = dict.fromkeys(
    (
        "ClusterEnvironment",
        "KubeflowEnvironment",
        "LSFEnvironment",
        "LightningEnvironment",
        "MPIEnvironment",
        "SLURMEnvironment",
        "TorchElasticEnvironment",
        "XLAEnvironment",
    ),
    _PARTS,
)
_PRECISIONS = {
    **dict.fromkeys(
        (
            "DeepSpeedPrecision",
            "DoublePrecision",
            "FSDPPrecision",
            "HalfPrecision",
            "MixedPrecision",
            "Precision",
            "XLAPrecision",
        ),
        _PARTS,
    ),
    "DeepSpeedPrecisionPlugin": f"{_PARTS}:DeepSpeedPrecision",
    "DoublePrecisionPlugin": f"{_PARTS}:DoublePrecision",
    "MixedPrecisionPlugin": f"{_PARTS}:MixedPrecision",
    "PrecisionPlugin": f"{_PARTS}:Precision",
}
_CHECKPOINT_IO = dict.fromkeys(
    ("AsyncCheckpointIO", "CheckpointIO", "TorchCheckpointIO", "XLACheckpointIO"), _PARTS
)
_TRAINING_TYPES = {
    name.replace("Strategy", "Plugin"): where if ":" in where else f"{where}:{name}"
    for name, where in _STRATEGIES.items()
    if name.endswith("Strategy") and name not in ("Strategy", "XLAFSDPStrategy", "ModelParallelStrategy")
}
_TRAINING_TYPES["TrainingTypePlugin"] = "stratagem:Strategy"
_PLUGINS = {
    **_CHECKPOINT_IO,
    **_PRECISIONS,
    **_TRAINING_TYPES,
    "ClusterEnvironment": _PARTS,
    "LayerSync": _PARTS,
    "TorchSyncBatchNorm": _PARTS,
}
_PROFILERS = {
    "AdvancedProfiler": "stratagem_trainer.profilers",
    "PassThroughProfiler": "stratagem_trainer.profilers",
    "Profiler": "stratagem_trainer.profilers",
    "PyTorchProfiler": "stratagem_trainer.profilers",
    "SimpleProfiler": "stratagem_trainer.profilers",
}
_ACCELERATORS = {
    "Accelerator": "stratagem",
    "AcceleratorRegistry": "stratagem_lightning.registries",
    "CPUAccelerator": "stratagem_cpu:CpuAccelerator",
    "CUDAAccelerator": "stratagem_cuda:CudaAccelerator",
    "GPUAccelerator": "stratagem_cuda:CudaAccelerator",
    "HPUAccelerator": "stratagem_hpu",
    "IPUAccelerator": "stratagem_ipu",
    "MPSAccelerator": "stratagem_mps:MpsAccelerator",
    "TPUAccelerator": "stratagem_xla:TpuAccelerator",
    "XLAAccelerator": "stratagem_xla:XlaAccelerator",
}
_CLI = {
    "LightningArgumentParser": "stratagem_lightning.cli",
    "LightningCLI": "stratagem_lightning.cli",
    "SaveConfigCallback": "stratagem_lightning.cli",
}
_RANK_ZERO = {
    "WarningCache": "stratagem_lightning.rank_zero",
    "rank_prefixed_message": "stratagem_lightning.rank_zero",
    "rank_zero_debug": "stratagem_trainer.rank_zero",
    "rank_zero_deprecation": "stratagem_trainer.rank_zero:rank_zero_warn",
    "rank_zero_info": "stratagem_trainer.rank_zero",
    "rank_zero_only": "stratagem_trainer.rank_zero",
    "rank_zero_warn": "stratagem_trainer.rank_zero",
}
_TYPES = dict.fromkeys(
    (
        "EVAL_DATALOADERS",
        "LRSchedulerConfig",
        "LRSchedulerConfigType",
        "LRSchedulerTypeUnion",
        "OptimizerConfig",
        "OptimizerLRScheduler",
        "OptimizerLRSchedulerConfig",
        "STEP_OUTPUT",
        "TRAIN_DATALOADERS",
    ),
    "stratagem_lightning.types",
)
_STATES = dict.fromkeys(
    ("RunningStage", "TrainerFn", "TrainerState", "TrainerStatus"), "stratagem_lightning.states"
)
_UTILITIES = {
    **_RANK_ZERO,
    "AttributeDict": "stratagem_trainer.module.hyperparameters:Hyperparameters",
    "CombinedLoader": "stratagem_trainer.data.combined_loader",
    "grad_norm": "stratagem_lightning.functions",
    "move_data_to_device": "stratagem_lightning.functions",
}
_EXCEPTIONS = {"MisconfigurationException": "stratagem.errors:ConfigError"}
_SEED = {
    "isolate_rng": "stratagem_trainer.stage.seeding",
    "seed_everything": "stratagem_trainer.stage.seeding",
}

MODULES: dict[str, dict[str, str]] = {
    "": _ROOT,
    "pytorch": {
        **{name: where for name, where in _ROOT.items() if name != "Fabric"},
        "cli_lightning_logo": "stratagem_lightning.functions",
    },
    "pytorch.accelerators": _ACCELERATORS,
    "pytorch.callbacks": _CALLBACKS,
    "pytorch.cli": _CLI,
    "pytorch.core": {name: _ROOT[name] for name in ("LightningDataModule", "LightningModule")},
    "pytorch.core.mixins": {"HyperparametersMixin": "stratagem_trainer.module.hyperparameters"},
    "pytorch.loggers": _LOGGERS,
    "pytorch.loggers.logger": {
        "Logger": _LOGGERS["Logger"],
        "rank_zero_experiment": "stratagem_lightning.functions",
    },
    "pytorch.plugins": _PLUGINS,
    "pytorch.plugins.environments": _ENVIRONMENTS,
    "pytorch.plugins.io": _CHECKPOINT_IO,
    "pytorch.plugins.layer_sync": {"LayerSync": _PARTS, "TorchSyncBatchNorm": _PARTS},
    "pytorch.plugins.precision": _PRECISIONS,
    "pytorch.plugins.training_type": _TRAINING_TYPES,
    "pytorch.profilers": _PROFILERS,
    "pytorch.strategies": _STRATEGIES,
    "pytorch.trainer": {name: _ROOT[name] for name in ("Trainer", "seed_everything")},
    "pytorch.trainer.states": _STATES,
    "pytorch.tuner": {"Tuner": "stratagem_callbacks.tuner"},
    "pytorch.utilities": _UTILITIES,
    "pytorch.utilities.combined_loader": {"CombinedLoader": _UTILITIES["CombinedLoader"]},
    "pytorch.utilities.exceptions": _EXCEPTIONS,
    "pytorch.utilities.grads": {"grad_norm": _UTILITIES["grad_norm"]},
    "pytorch.utilities.model_helpers": {"is_overridden": "stratagem_lightning.functions"},
    "pytorch.utilities.model_summary": {
        "LayerSummary": "stratagem_trainer.callbacks.model_summary",
        "ModelSummary": "stratagem_lightning.summary",
        "summarize": "stratagem_lightning.summary",
    },
    "pytorch.utilities.parsing": {
        "AttributeDict": _UTILITIES["AttributeDict"],
        "get_init_args": "stratagem_lightning.functions",
    },
    "pytorch.utilities.rank_zero": _RANK_ZERO,
    "pytorch.utilities.seed": _SEED,
    "pytorch.utilities.types": _TYPES,
    "fabric": {"Fabric": _ROOT["Fabric"], "seed_everything": _ROOT["seed_everything"]},
    "fabric.accelerators": _ACCELERATORS,
    "fabric.loggers": {
        "CSVLogger": "stratagem_lightning.loggers:FabricCSVLogger",
        "Logger": _LOGGERS["Logger"],
        "TensorBoardLogger": "stratagem_lightning.loggers:FabricTensorBoardLogger",
    },
    "fabric.plugins": {name: where for name, where in _PLUGINS.items() if name not in _TRAINING_TYPES},
    "fabric.plugins.environments": _ENVIRONMENTS,
    "fabric.plugins.io": _CHECKPOINT_IO,
    "fabric.plugins.precision": _PRECISIONS,
    "fabric.strategies": {
        **_STRATEGIES,
        "STRATEGY_REGISTRY": "stratagem_lightning.registries:StrategyRegistry",
    },
    "fabric.utilities": {**_RANK_ZERO, "move_data_to_device": _UTILITIES["move_data_to_device"]},
    "fabric.utilities.exceptions": _EXCEPTIONS,
    "fabric.utilities.rank_zero": _RANK_ZERO,
    "fabric.utilities.seed": _SEED,
    "fabric.utilities.types": dict.fromkeys(("_MAP_LOCATION_TYPE", "_PATH"), "stratagem_lightning.types"),
}

_ENVIRONMENT_MODULES = (
    *("cluster_environment", "kubeflow", "lightning", "lsf", "mpi", "slurm", "torchelastic", "xla"),
)
_PRECISION_MODULES = ("amp", "deepspeed", "double", "fsdp", "half", "precision", "xla")
_INNER = {
    "pytorch.callbacks": (
        *(
            "batch_size_finder",
            "callback",
            "checkpoint",
            "device_stats_monitor",
            "early_stopping",
            "finetuning",
        ),
        *(
            "gradient_accumulation_scheduler",
            "lambda_function",
            "lr_finder",
            "lr_monitor",
            "model_checkpoint",
        ),
        *("model_summary", "on_exception_checkpoint", "prediction_writer", "progress", "pruning"),
        *("rich_model_summary", "stochastic_weight_avg", "throughput_monitor", "timer", "weight_averaging"),
        *("progress.progress_bar", "progress.rich_progress", "progress.tqdm_progress"),
    ),
    "pytorch.core": ("datamodule", "module"),
    "pytorch.core.mixins": ("hparams_mixin",),
    "pytorch.accelerators": ("accelerator", "cpu", "cuda", "gpu", "hpu", "ipu", "mps", "tpu", "xla"),
    "pytorch.plugins.environments": _ENVIRONMENT_MODULES,
    "pytorch.plugins.io": ("async_plugin", "checkpoint_plugin", "torch_plugin", "wrapper", "xla_plugin"),
    "pytorch.plugins.precision": _PRECISION_MODULES,
    "pytorch.plugins.training_type": (
        *("ddp", "ddp2", "ddp_spawn", "deepspeed", "dp", "fully_sharded", "horovod", "ipu", "parallel"),
        *("sharded", "sharded_spawn", "single_device", "single_tpu", "tpu_spawn", "training_type_plugin"),
    ),
    "pytorch.utilities.model_summary": ("model_summary",),
    "fabric.accelerators": ("accelerator", "cpu", "cuda", "mps", "xla"),
    "fabric.plugins.environments": _ENVIRONMENT_MODULES,
    "fabric.plugins.io": ("checkpoint_io", "torch_io", "xla"),
    "fabric.plugins.precision": _PRECISION_MODULES,
    "pytorch.loggers": ("comet", "csv_logs", "mlflow", "tensorboard", "wandb"),
    "pytorch.profilers": ("advanced", "base", "profiler", "pytorch", "simple"),
    "pytorch.strategies": (
        *("bagua", "ddp", "ddp2", "ddp_spawn", "deepspeed", "dp", "fsdp", "fully_sharded"),
        *("fully_sharded_native", "horovod", "hpu_parallel", "ipu", "model_parallel", "parallel", "registry"),
        *("sharded", "sharded_spawn", "single_device", "single_hpu", "single_tpu", "single_xla", "strategy"),
        *("tpu_spawn", "xla"),
    ),
    "pytorch.trainer": ("trainer",),
    "pytorch.tuner": ("tuning",),
    "fabric": ("fabric",),
    "fabric.loggers": ("csv_logs", "logger", "tensorboard"),
    "fabric.strategies": (
        *("ddp", "deepspeed", "dp", "fsdp", "model_parallel", "parallel", "registry", "single_device"),
        *("single_xla", "strategy", "xla", "xla_fsdp"),
    ),
}
MODULES.update({f"{outer}.{inner}": MODULES[outer] for outer, inners in _INNER.items() for inner in inners})
