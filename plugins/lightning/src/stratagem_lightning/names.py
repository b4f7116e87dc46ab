"""Which name of Lightning's is what here: all of the table that `stratagem_lightning` is made of.

A key is a module below `stratagem_lightning`; a value says for each of its names where it is, as
"module:attribute", or as "module" where it is called the same there.
"""

from __future__ import annotations

_ROOT = {
    "__version__": "stratagem",
    "Callback": "stratagem_trainer.callbacks",
    "Fabric": "stratagem_lightning.fabric_object",
    "LightningDataModule": "stratagem_lightning.datamodule",
    "LightningModule": "stratagem_lightning.module",
    "Trainer": "stratagem_lightning.trainer",
    "seed_everything": "stratagem_trainer.seeding",
}
_CALLBACKS = {
    **dict.fromkeys(
        (
            "BackboneFinetuning",
            "BaseFinetuning",
            "BatchSizeFinder",
            "Callback",
            "DeviceStatsMonitor",
            "EMAWeightAveraging",
            "GradientAccumulationScheduler",
            "LambdaCallback",
            "LearningRateFinder",
            "LearningRateMonitor",
            "ModelPruning",
            "ModelSummary",
            "OnExceptionCheckpoint",
            "ProgressBar",
            "RichProgressBar",
            "StochasticWeightAveraging",
            "TQDMProgressBar",
            "ThroughputMonitor",
            "Timer",
            "WeightAveraging",
        ),
        "stratagem_trainer.callbacks",
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
    "DDPStrategy": "stratagem_ddp",
    "DeepSpeedStrategy": "stratagem_deepspeed",
    "FSDPStrategy": "stratagem_fsdp",
    "ModelParallelStrategy": "stratagem_model_parallel",
    "ParallelStrategy": "stratagem",
    "SingleDeviceStrategy": "stratagem_single",
    "Strategy": "stratagem",
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
    "CPUAccelerator": "stratagem_cpu:CpuAccelerator",
    "CUDAAccelerator": "stratagem_cuda:CudaAccelerator",
    "MPSAccelerator": "stratagem_mps:MpsAccelerator",
    "XLAAccelerator": "stratagem_xla:XlaAccelerator",
}
_CLI = {
    "LightningArgumentParser": "stratagem_lightning.cli",
    "LightningCLI": "stratagem_lightning.cli",
    "SaveConfigCallback": "stratagem_lightning.cli",
}
_RANK_ZERO = {
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
    "AttributeDict": "stratagem_trainer.hyperparameters:Hyperparameters",
    "CombinedLoader": "stratagem_trainer.data.combined_loader",
    "grad_norm": "stratagem_lightning.functions",
    "move_data_to_device": "stratagem_lightning.functions",
}
_EXCEPTIONS = {"MisconfigurationException": "stratagem.errors:ConfigError"}
_SEED = {"isolate_rng": "stratagem_trainer.seeding", "seed_everything": "stratagem_trainer.seeding"}

MODULES: dict[str, dict[str, str]] = {
    "": _ROOT,
    "pytorch": {name: where for name, where in _ROOT.items() if name != "Fabric"},
    "pytorch.accelerators": _ACCELERATORS,
    "pytorch.callbacks": _CALLBACKS,
    "pytorch.cli": _CLI,
    "pytorch.core": {name: _ROOT[name] for name in ("LightningDataModule", "LightningModule")},
    "pytorch.loggers": _LOGGERS,
    "pytorch.loggers.logger": {
        "Logger": _LOGGERS["Logger"],
        "rank_zero_experiment": "stratagem_lightning.functions",
    },
    "pytorch.profilers": _PROFILERS,
    "pytorch.strategies": _STRATEGIES,
    "pytorch.trainer": {name: _ROOT[name] for name in ("Trainer", "seed_everything")},
    "pytorch.trainer.states": _STATES,
    "pytorch.tuner": {"Tuner": "stratagem_trainer.tuner"},
    "pytorch.utilities": _UTILITIES,
    "pytorch.utilities.combined_loader": {"CombinedLoader": _UTILITIES["CombinedLoader"]},
    "pytorch.utilities.exceptions": _EXCEPTIONS,
    "pytorch.utilities.grads": {"grad_norm": _UTILITIES["grad_norm"]},
    "pytorch.utilities.parsing": {"AttributeDict": _UTILITIES["AttributeDict"]},
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
    "fabric.strategies": _STRATEGIES,
    "fabric.utilities": {**_RANK_ZERO, "move_data_to_device": _UTILITIES["move_data_to_device"]},
    "fabric.utilities.exceptions": _EXCEPTIONS,
    "fabric.utilities.rank_zero": _RANK_ZERO,
    "fabric.utilities.seed": _SEED,
}

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
    "pytorch.loggers": ("comet", "csv_logs", "mlflow", "tensorboard", "wandb"),
    "pytorch.profilers": ("advanced", "base", "profiler", "pytorch", "simple"),
    "pytorch.strategies": (
        "ddp",
        "deepspeed",
        "fsdp",
        "model_parallel",
        "parallel",
        "single_device",
        "strategy",
    ),
    "pytorch.trainer": ("trainer",),
    "pytorch.tuner": ("tuning",),
    "fabric": ("fabric",),
    "fabric.loggers": ("csv_logs", "logger", "tensorboard"),
    "fabric.strategies": ("ddp", "deepspeed", "fsdp", "model_parallel", "single_device", "strategy"),
}
MODULES.update({f"{outer}.{inner}": MODULES[outer] for outer, inners in _INNER.items() for inner in inners})
