"""What Lightning has and this distribution doesn't, and what to write instead.

Names and arguments are in the words of Lightning's documentation. A test compares these tables, and names.py,
with what the installed Lightning offers; docs/coming-from-lightning.md is made of them.
"""

from __future__ import annotations

from difflib import get_close_matches

_PORTABLE = (
    "a checkpoint here is one format under every strategy: load it under any other, without conversion"
)
LOOPS = "loops aren't exchangeable: hooks and callbacks change what they do, and Runtime is for a loop of your own"

GONE = {
    "colossalai": "Colossal-AI's engine isn't offered: fsdp, deepspeed and model_parallel shard parameters",
    "hivemind": (
        "Hivemind's peers aren't offered: diloco lets replicas step independently, and num_nodes='1:4' lets machines "
        "come and go"
    ),
}
GONE["collaborative"] = GONE["hivemind"]
"""Lightning's former names of strategies → what to use instead."""
_BITS = (
    "weights in 4 or 8 bits aren't offered: quantize layers in configure_model by bitsandbytes' own classes"
)
_FP8 = "use transformer_engine's own layers and fp8_autocast in the module"
_PIPE = "FairScale's Pipe is stratagem_fairscale.FairScalePipeStrategy(balance=…); pipeline is torch's own"

ABSENT: dict[str, str] = {
    **{
        f"lightning.{root}.plugins.{name}": why
        for root in ("fabric", "pytorch")
        for name, why in {
            "BitsandbytesPrecision": _BITS,
            "TransformerEnginePrecision": _FP8,
            "precision.BitsandbytesPrecision": _BITS,
            "precision.TransformerEnginePrecision": _FP8,
            "precision.bitsandbytes": _BITS,
            "precision.transformer_engine": _FP8,
        }.items()
    },
    "lightning.pytorch.plugins.RPCPlugin": _PIPE,
    "lightning.pytorch.plugins.RPCSequentialPlugin": _PIPE,
    "lightning.pytorch.plugins.training_type.rpc": _PIPE,
    "lightning.pytorch.plugins.training_type.rpc_sequential": _PIPE,
    "lightning.app": "apps aren't part of a trainer",
    "lightning.data": "streaming data sets are litdata's: its loaders work here as any iterable",
    "lightning.fabric.plugins.collectives": "Fabric's all_gather, all_reduce, broadcast and barrier do it",
    "lightning.fabric.utilities.consolidate_checkpoint": _PORTABLE,
    "lightning.fabric.utilities.throughput": "ThroughputMonitor of lightning.pytorch.callbacks measures it",
    "lightning.fabric.wrappers": "what setup() returns is a module, and answers isinstance as one",
    "lightning.pytorch.accelerators.find_usable_cuda_devices": (
        "devices=2 takes the first ones: docs/guides/devices.md"
    ),
    "lightning.pytorch.callbacks.SpikeDetection": (
        "a Callback may look at each loss; terminate_on_nan=True ends a run"
    ),
    "lightning.fabric.is_wrapped": "setup() returns a module whose original_module is the one that it was given",
    "lightning.pytorch.cli.ModuleType": "it is typing.TypeVar's",
    "lightning.pytorch.cli.ReduceLROnPlateau": "torch.optim.lr_scheduler has it",
    "lightning.pytorch.utilities.exceptions.SIGTERMException": (
        "a fit that is to stop ends after its step, without one"
    ),
    "lightning.pytorch.utilities.types.DistributedDataParallel": "torch.nn.parallel has it",
    "lightning.pytorch.cli.instantiate_class": "jsonargparse makes objects of class paths that are allowed",
    "lightning.pytorch.cli.instantiate_module": "jsonargparse makes objects of class paths that are allowed",
    "lightning.pytorch.core.hooks": "its classes are what LightningModule, LightningDataModule and Callback have",
    "lightning.pytorch.core.optimizer": "self.optimizers() returns what steps through the strategy",
    "lightning.pytorch.demos": "models for demonstrations aren't shipped: examples/ has programs",
    "lightning.pytorch.loggers.NeptuneLogger": "not written: derive from Logger, docs/guides/logging.md",
    "lightning.pytorch.loops": LOOPS,
    "lightning.pytorch.overrides": "the strategy says how a module is wrapped: Strategy.setup",
    "lightning.pytorch.strategies.ColossalAIStrategy": GONE["colossalai"],
    "lightning.pytorch.strategies.HivemindStrategy": GONE["hivemind"],
    "lightning.pytorch.strategies.colossalai": GONE["colossalai"],
    "lightning.pytorch.strategies.hivemind": GONE["hivemind"],
    "lightning.pytorch.strategies.launchers": (
        "start_method of a strategy says how processes are started, and `stratagem run` starts a script's"
    ),
    "lightning.pytorch.profilers.XLAProfiler": "torch_xla.debug.profiler may be called in hooks",
    "lightning.pytorch.serve": "serving isn't part of a trainer",
    "lightning.pytorch.trainer.connectors": LOOPS,
    "lightning.pytorch.utilities.GradClipAlgorithmType": 'write "norm" or "value"',
    "lightning.pytorch.utilities.LightningEnum": "derive from enum.Enum",
    "lightning.pytorch.utilities.compile": "choose stratagem fit --compile blocks, or stratagem_compile.Compile()",
    "lightning.pytorch.utilities.consolidate_checkpoint": _PORTABLE,
    "lightning.pytorch.utilities.deepspeed": _PORTABLE,
    "lightning.pytorch.utilities.disable_possible_user_warnings": "warnings.filterwarnings does it",
    "lightning.pytorch.utilities.find_shared_parameters": "shared parameters stay shared under every strategy",
    "lightning.pytorch.utilities.is_picklable": "an attribute that can't be pickled is named in the error",
    "lightning.pytorch.utilities.is_shared_filesystem": "each node writes to the folder that it is given",
    "lightning.pytorch.utilities.measure_flops": "ModelSummary shows FLOPs; torch.utils.flop_counter counts them",
    "lightning.pytorch.utilities.memory": "torch.cuda.OutOfMemoryError says that memory was short",
    "lightning.pytorch.utilities.migration": "`stratagem checkpoint convert` reads its checkpoints",
    "lightning.pytorch.utilities.set_shared_parameters": "shared parameters stay shared under every strategy",
    "lightning.pytorch.utilities.suggested_max_num_workers": "len(os.sched_getaffinity(0)) divided by the devices",
    "lightning.pytorch.utilities.upgrade_checkpoint": "`stratagem checkpoint convert` reads its checkpoints",
    "lightning.store": "a registry of models isn't part of a trainer",
}
"""Dotted name of a module or of something in it → why not, or what instead."""

MEMBERS: dict[str, dict[str, str]] = {
    "Trainer": {
        "device_ids": "device is this rank's, and num_devices how many a machine uses",
        "distributed_sampler_kwargs": "data are shared among ranks without a sampler of the trainer's",
        "enable_validation": "num_val_batches is empty where a fit has no validation",
        "init_module": "build layers in configure_model",
        "interrupted": "state.status says so",
        "precision_plugin": "precision has its name",
        "received_sigterm": "should_stop ends a fit after its step",
        "scaler": "prepared.precision has it",
    },
    "LightningModule": {
        **dict.fromkeys(
            ("on_predict_model_eval", "on_test_model_eval", "on_validation_model_eval"),
            "the module is in evaluation mode while it is evaluated: call train() of some layers in the step",
        ),
        **dict.fromkeys(
            ("on_test_model_train", "on_validation_model_train"),
            "the modes of all layers are given back after an evaluation",
        ),
        **dict.fromkeys(
            ("CHECKPOINT_HYPER_PARAMS_KEY", "CHECKPOINT_HYPER_PARAMS_NAME", "CHECKPOINT_HYPER_PARAMS_TYPE"),
            _PORTABLE,
        ),
        "backward": "set automatic_optimization = False, and call manual_backward",
        "configure_sharded_model": "it is now called configure_model",
        "device_mesh": "parallelize(mesh) gets it",
        "on_validation_model_zero_grad": "gradients are dropped right after a step",
        "to_onnx": "torch.onnx.export does it",
        "to_torchscript": "torch.export or torch.jit.script does it",
    },
    "LightningDataModule": {
        **dict.fromkeys(
            ("CHECKPOINT_HYPER_PARAMS_KEY", "CHECKPOINT_HYPER_PARAMS_NAME", "CHECKPOINT_HYPER_PARAMS_TYPE"),
            _PORTABLE,
        ),
    },
    "Fabric": {
        "accelerator": "device says where tensors belong, and config.accelerator what was asked for",
        "load_raw": "load(path) returns what is there besides modules and optimizers",
        "run": "pass the function that each rank is to run to launch",
        "setup_optimizers": "pass them to setup, with their module",
        "sharded_model": "build the module, and pass it to setup",
    },
}
"""Class → public attribute or method of Lightning's → why it isn't here."""

FIT_LIMITS = ("max_epochs", "min_epochs", "max_steps", "min_steps")
"""Attributes of `trainer.fit_loop` here."""

UNREACHABLE: dict[str, str] = {
    "test_loop": LOOPS,
    "validate_loop": LOOPS,
    "predict_loop": LOOPS,
}
"""Attributes of a trainer that programs use although Lightning's documentation doesn't list them."""

_TAKEN = "an override that takes it gets it; a call of super() leaves it out"
ARGUMENTS: dict[str, str] = {
    **{
        f"{owner}.on_{stage}_batch_{when}({argument})": _TAKEN
        for owner, arguments in {
            "Callback": ("pl_module", "dataloader_idx"),
            "LightningModule": ("dataloader_idx",),
        }.items()
        for argument in arguments
        for stage in ("validation", "test", "predict")
        for when in ("start", "end")
    },
    "Callback.load_state_dict(state_dict)": "its name is free: it is given by position",
    "Fabric.setup_module(_reapply_compile)": "a compiled module stays compiled",
    "LightningDataModule.load_state_dict(state_dict)": "its name is free: it is given by position",
    "LightningModule.log(enable_graph)": "what is logged has no graph",
    "LightningModule.log(sync_dist_group)": "values are reduced over the ranks that read different data",
}
"""\"Class.method(argument)\" of Lightning's → why it isn't here."""

DIFFERENT: list[tuple[str, str, str]] = [
    (
        "a setting of the trainer, `fit_loop.max_epochs` or `logger` that is set while a stage runs",
        "takes effect in the running stage",
        "refused: set it between stages",
    ),
    (
        "a program's own methods with names similar to hooks",
        "accepted silently",
        "accepted with a warning that names the nearest hooks",
    ),
    (
        "precisions, environments and `AsyncCheckpointIO` in `Trainer(plugins=[…])`",
        "objects whose methods are called; programs can derive from their classes",
        "names of the run's components; deriving from their classes is refused: derive from `stratagem.Precision`, "
        "`Environment` or `Checkpointer`",
    ),
    (
        "1-bit Adam, by DeepSpeed's `OneBitAdam`",
        "passed to DeepSpeed, which has removed it",
        "refused by name; `bagua_qadam` is the same method with 8 bits",
    ),
    (
        "a checkpoint",
        "a file in pickle format",
        "a folder of safetensors and JSON; loading it executes no code, and every strategy can load it; with "
        "`ModelCheckpoint(as_file=True)` also a file like Lightning's",
    ),
    (
        "order of a training `DataLoader(shuffle=True)`",
        "on one device from torch's generator, on several from the seed of `seed_everything`",
        "from the seed of `seed_everything` and the epoch: the same with any number of processes, and after a resume",
    ),
    (
        "evaluation in several processes",
        "some samples are read twice if they can't be divided evenly",
        "each sample is read once",
    ),
    ("resuming in mid-epoch", "restarts the epoch", "continues with the next sample"),
    (
        "`on_before_zero_grad`",
        "between the forward and the backward of the next batch",
        "right after the step: gradients are freed immediately, which saves their memory",
    ),
    (
        '`outputs["loss"]` in `on_train_batch_end`',
        "divided by `accumulate_grad_batches`",
        "as the step returned it",
    ),
    ("`step` of a logged row of a training", "the last step, from 0", "completed steps"),
    (
        "a module's own `load_state_dict`",
        "is called for `ckpt_path`",
        "is called by `load_from_checkpoint`; with `ckpt_path` such a module is refused",
    ),
    (
        '`checkpoint["state_dict"]` in `on_save_checkpoint` and `on_load_checkpoint`',
        "may be read and replaced",
        "refused, like all entries that the program hasn't added itself",
    ),
    (
        "private methods (`ModelCheckpoint._save_checkpoint`) that a program overrides",
        "are called",
        "refused by name, with what to write instead",
    ),
    (
        "state of `ModelCheckpoint` and `EarlyStopping` in `test(ckpt_path=…)`",
        "is loaded from the checkpoint",
        "keeps its values from the fit",
    ),
    ("a mean over an epoch", "in float32", "in float64"),
    (
        "`save_checkpoint` after a fit",
        "writes the objects that still exist",
        "copies the checkpoint of the fit's last step",
    ),
    (
        "a run's folder",
        "the logger's folder, which also has the checkpoints",
        "`runs/<time>-<class>`, which has the checkpoints; loggers have folders of their own, as in Lightning",
    ),
    (
        "`last`, in addition to a `ModelCheckpoint`'s other checkpoints",
        "with `save_last=True`",
        "unless `save_last=False`, because `save_checkpoint` after a fit copies it; a checkpoint that is kept only "
        "for it has a name that begins with a dot",
    ),
    (
        "`every_n_train_steps` with a `monitor` that validations log",
        "saves at the step, with the value of an earlier validation",
        "saves at the next validation, with its value",
    ),
    (
        "two checkpoints of a run with the same name",
        "the later one replaces the earlier one, or gets `-v1`",
        "the later one gets `-step=…` if both are kept",
    ),
    (
        "a metric in `filename` that is never logged",
        "0 instead",
        "refused at the first checkpoint after a validation",
    ),
    (
        "`Tuner.scale_batch_size`",
        "returns the size after the largest that fits",
        "returns the largest that fits",
    ),
    (
        "a second `fit` of one trainer",
        "continues from the epoch that it has reached, so that nothing is trained if that is `max_epochs`",
        "begins with epoch 0, and with the module's current weights",
    ),
    (
        "values that a sanity check adds to metric objects",
        "remain, unless the program resets them",
        "are dropped",
    ),
    (
        "`val_check_interval` with `accumulate_grad_batches`",
        "validates after that batch, even between the batches of a step",
        "validates after the step",
    ),
    (
        "order of a training `DataLoader` without `shuffle`, under ddp",
        "shuffled by the sampler that the trainer creates",
        "not shuffled",
    ),
    (
        "an evaluation's `DataLoader(drop_last=True)`",
        "leaves the last samples out",
        "each sample is read once",
    ),
    (
        "metrics that are logged for steps and for the epoch",
        "loggers get `x_step` and `x_epoch`",
        "loggers get `x` for both",
    ),
    ("`self.log` in hooks such as `on_train_end`", "refused", "logged with the epoch"),
    (
        "a class path on a command line",
        "any; its package is imported",
        "only in the program's packages, torch, stratagem, and the packages in `STRATAGEM_CLASS_PATHS`",
    ),
    (
        "hyperparameters in a checkpoint",
        "any objects that can be pickled",
        "JSON values, and classes by name; a warning names others, which are left out",
    ),
    (
        "rates that `Tuner.lr_find` tries",
        "the second one is left out; the first loss counts half, which ends many searches immediately",
        "`num_training` rates, evenly spaced on a logarithmic scale",
    ),
    (
        "`should_stop` in the first epoch, before `min_steps`",
        "the fit ends with the epoch",
        "the fit ends after `min_steps`, as in later epochs",
    ),
    (
        "methods of `Fabric`'s modules on one device, in mixed precision",
        "run in full precision, even if they are marked",
        "run in the run's precision if they are marked, and are refused otherwise",
    ),
    (
        "a program's own `batch_sampler`, under ddp",
        "created again, with a sampler that splits the samples among the ranks",
        "not changed, with a warning if ranks read the same samples; samplers are split as in Lightning",
    ),
]
"""Intended differences: feature, behaviour in Lightning, behaviour here."""


def is_absent(module: str, name: str) -> bool:
    """Whether the tables list a name, or a module above it, as absent."""
    return _reason(_dotted(module, name)) is not None


def reason_for(module: str, name: str) -> str:
    """Return the reason why a name isn't in a module of this package; `module` is a key of names.py."""
    from stratagem_lightning.names import MODULES

    name_there = _dotted(module, name)
    if reason := _reason(name_there):
        return f"{name_there} isn't here: {reason}"
    known = [
        *MODULES.get(module, ()),
        *(each.rpartition(".")[2] for each in MODULES if each.startswith(module + ".")),
    ]
    near = get_close_matches(name, known, 3, 0.6)
    here = ".".join(filter(None, ("stratagem_lightning", module)))
    return f"{here} has no {name!r}" + (f"; nearest: {', '.join(dict.fromkeys(near))}" if near else "")


def _dotted(module: str, name: str) -> str:
    return ".".join(filter(None, ("lightning", module, name)))


def _reason(name: str) -> str | None:
    parts = name.split(".")
    return next(
        (ABSENT[".".join(parts[:n])] for n in range(len(parts), 1, -1) if ".".join(parts[:n]) in ABSENT), None
    )
