"""`stratagem fit | validate | test | predict`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import cloup
from stratagem_cli import flags
from stratagem_cli.completion import component_names
from stratagem_cli.grouped import GroupedCommand
from stratagem_cli.placed import is_elsewhere, place_flags, run_elsewhere
from stratagem_cli.settings import (
    DATA_CLASS,
    Settings,
    checkpoint_settings,
    merged,
    strategy_settings,
    trainer_settings,
)

import stratagem
from stratagem.errors import ConfigError, TargetError
from stratagem_trainer.commands.block_flags import block_flags, with_block_flags
from stratagem_trainer.commands.memory import memory_flag, with_memory
from stratagem_trainer.commands.paths import refuse_checkpoint_path, refuse_run_dir
from stratagem_trainer.commands.printing import is_reporting, print_metrics
from stratagem_trainer.commands.scheme_target import AnyTarget, parse_target
from stratagem_trainer.commands.stop_flags import STOP_FLAGS, evaluation_stop_flags, stop_flags
from stratagem_trainer.commands.target import EXAMPLE

if TYPE_CHECKING:
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.commands.module_spec import DataSpec, ModuleSpec
    from stratagem_trainer.commands.saved_config import Resolved
    from stratagem_trainer.trainer import Trainer

F = TypeVar("F", bound=Callable[..., Any])

SEED = 0
"""The default seed, so that a saved configuration repeats its run."""

PRELOAD = ("stratagem_trainer.trainer", "stratagem_trainer.commands.module_spec")
"""Modules that the workers of these commands need."""

TRAINING = cloup.OptionGroup("Training and evaluating")
SETTINGS = cloup.OptionGroup("Settings")

_TRAINER_FLAGS = ("global_batch_size", "logger", "max_epochs", "max_steps", *STOP_FLAGS)


def stage_flags(command: F) -> F:
    """Add TARGET and the flags that all four commands have."""
    for decorate in (
        cloup.option("--model", group=TRAINING, metavar="TARGET", help="Same as the argument TARGET."),
        cloup.option(
            "--set",
            "sets",
            group=SETTINGS,
            multiple=True,
            metavar="KEY=VALUE",
            help="Such as model.hidden=64, data.batch_size=32, strategy.timeout_s=60, checkpoint.async=true or "
            "trainer.log_every_n_steps=10 (repeatable).",
        ),
        cloup.option(
            "--print-config",
            group=SETTINGS,
            is_flag=True,
            help="Print all settings, including defaults, and run nothing.",
        ),
        cloup.option(
            "--data",
            group=TRAINING,
            metavar="FILE.py:CLASS",
            help="A DataModule to replace TARGET's own loaders; also module:Class, or SCHEME:TEXT of a plugin.",
        ),
        cloup.option(
            "--config",
            "config_files",
            group=SETTINGS,
            multiple=True,
            metavar="FILE",
            help="A YAML file with settings, such as config.yaml in a run's folder; flags and --set take precedence.",
        ),
        cloup.option("--run-dir", group=TRAINING, metavar="FOLDER", help="Folder for the run's files."),
        cloup.option(
            "--ckpt-path",
            group=TRAINING,
            metavar="PATH",
            help="Resume from a checkpoint, or evaluate its weights.",
        ),
        place_flags,
        flags.selection_flags,
        click.argument("target", required=False),
    ):
        command = decorate(command)
    return command


@cloup.command(
    cls=GroupedCommand,
    epilog="\b\n"
    "Examples:\n"
    "  stratagem fit digits.py:Digits --strategy ddp --devices 2\n"
    "  stratagem fit --config runs/NAME/config.yaml\n"
    "  stratagem fit digits.py:Digits --max-epochs 3 --set model.hidden=128",
)
@cloup.option(
    "--max-epochs", group=TRAINING, type=click.IntRange(-1), help="Stop after this many epochs; -1: no limit."
)
@cloup.option(
    "--max-steps",
    group=TRAINING,
    type=click.IntRange(-1),
    help="Stop after this many optimizer steps; -1: no limit.",
)
@cloup.option(
    "--global-batch-size",
    group=TRAINING,
    type=click.IntRange(1),
    help="Samples per optimizer step over all ranks; accumulates as many batches as that takes.",
)
@memory_flag(TRAINING)
@block_flags(TRAINING)
@cloup.option(
    "--logger",
    group=TRAINING,
    metavar="NAMES",
    shell_complete=component_names("logger"),
    help="Such as wandb, or csv,tensorboard; `stratagem plugins` lists them.",
)
@stop_flags
@stage_flags
def fit(**keywords: Any) -> None:
    """Train TARGET: file.py:Class, package.module:Class, or SCHEME:TEXT of a plugin, such as hf:FOLDER."""
    run_fit(keywords)


def run_fit(keywords: dict[str, Any], callbacks: Sequence[Callback] = ()) -> None:
    """Run `stratagem fit`, for commands of other packages that add callbacks.

    Args:
        keywords: `fit.make_context("fit", words).params`.
        callbacks: added to the trainer's. They aren't in the config.yaml of the run's folder.

    Raises:
        ConfigError, TargetError, UnknownNameError: a setting can't be used.
    """
    settings, target = read_settings(keywords)
    trainer, spec, data = _trainer(settings, target, "fit")
    trainer.callbacks.extend(callbacks)
    trainer.fit(spec, datamodule=data, ckpt_path=settings.ckpt_path)
    if is_reporting(settings):
        print_metrics(dict(trainer.callback_metrics))
        if trainer.run_dir is not None:
            click.echo(f"run folder  {_shown(trainer.run_dir)}")


def _shown(folder: str) -> str:
    """Return a path relative to the current folder, if it is in there."""
    relative = os.path.relpath(folder)
    return folder if relative.startswith("..") else relative


@cloup.command(
    cls=GroupedCommand,
    epilog="\b\nExamples:\n  stratagem validate digits.py:Digits --ckpt-path runs/NAME/checkpoints/last",
)
@evaluation_stop_flags
@stage_flags
def validate(**keywords: Any) -> None:
    """Run the validation of TARGET, and print its metrics."""
    settings, target = read_settings(keywords)
    trainer, spec, data = _trainer(settings, target, "validate")
    metrics = trainer.validate(spec, datamodule=data, ckpt_path=settings.ckpt_path)
    if is_reporting(settings):
        print_metrics({name: value for of_loader in metrics for name, value in of_loader.items()})


@cloup.command(
    cls=GroupedCommand,
    epilog="\b\nExamples:\n  stratagem test digits.py:Digits --ckpt-path runs/NAME/checkpoints/last",
)
@evaluation_stop_flags
@stage_flags
def test(**keywords: Any) -> None:
    """Run the test of TARGET, and print its metrics."""
    settings, target = read_settings(keywords)
    trainer, spec, data = _trainer(settings, target, "test")
    metrics = trainer.test(spec, datamodule=data, ckpt_path=settings.ckpt_path)
    if is_reporting(settings):
        print_metrics({name: value for of_loader in metrics for name, value in of_loader.items()})


@cloup.command(
    cls=GroupedCommand,
    epilog="\b\n"
    "Examples:\n"
    "  stratagem predict digits.py:Digits --ckpt-path runs/NAME/checkpoints/last --output digits.npz",
)
@cloup.option("--output", group=TRAINING, metavar="FILE.npz", help="Write the predictions as NumPy arrays.")
@evaluation_stop_flags
@stage_flags
def predict(output: str | None, **keywords: Any) -> None:
    """Predict with TARGET, and print or write predictions in the order of its data."""
    from stratagem_launch import Preempted

    from stratagem_trainer.commands.predictions import keep, partial_output, refuse_output

    refuse_output(output)
    settings, target = read_settings(keywords)
    trainer, spec, data = _trainer(settings, target, "predict")
    try:
        predictions = trainer.predict(spec, datamodule=data, ckpt_path=settings.ckpt_path)
        if predictions and len(trainer.num_predict_batches) > 1:
            predictions = [batch for of_loader in predictions for batch in of_loader]
    except Preempted as stopped:
        if is_reporting(settings) and any(stopped.predictions or ()):
            predictions = [batch for of_loader in stopped.predictions or () for batch in of_loader]
            keep(predictions, output and partial_output(output))
        raise
    if is_reporting(settings):
        keep(predictions, output)


def read_settings(keywords: dict[str, Any]) -> tuple[Settings, AnyTarget]:
    """Merge the settings of files and flags, and check them as far as possible without importing torch.

    Raises:
        ConfigError, TargetError: a setting or the target can't be used.
    """
    layer = flags.given(keywords)
    if keywords.get("model") is not None:
        if keywords.get("target") is not None:
            raise ConfigError(
                f"--model {keywords['model']} and TARGET {keywords['target']} are the same setting: pass one of them"
            )
        layer["target"] = keywords["model"]
    for key in ("target", "ckpt_path", "run_dir"):
        if keywords.get(key) is not None:
            layer[key] = keywords[key]
    for part in ("strategy", "checkpoint"):
        if part in layer:
            layer[part] = {"name": layer[part]}
    if keywords.get("data") is not None:
        layer["data"] = {DATA_CLASS: keywords["data"]}
    trainer = {key: keywords[key] for key in _TRAINER_FLAGS if keywords.get(key) is not None}
    if trainer:
        layer["trainer"] = trainer
    settings = merged(keywords["config_files"], layer, keywords["sets"]).with_defaults(seed=SEED)
    settings = with_memory(settings, keywords.get("checkpoint_memory"))
    settings = with_block_flags(settings, keywords)
    refuse_run_dir(settings.selection.get("run_dir"))
    refuse_checkpoint_path(settings.ckpt_path)
    if settings.target is None:
        raise TargetError(f"TARGET is missing: pass one {EXAMPLE}, or a --config file that has it")
    target = parse_target(settings.target, "model")
    target.make_importable()  # unpickling what workers send back may import it
    _data_target(settings)
    if keywords.get("print_config"):
        click.echo(resolve_settings(settings, target).as_yaml(), nl=False)
        click.get_current_context().exit()
    if is_elsewhere(keywords):
        resolved = resolve_settings(settings, target)
        run_elsewhere(keywords, settings.selection, resolved.as_yaml(), resolved.trainer["grace_period_s"])
    return settings, target


def _data_target(settings: Settings) -> AnyTarget | None:
    """Return the target of the data module, checked as far as possible without importing it.

    Raises:
        ConfigError, TargetError: a setting or the target can't be used.
    """
    if settings.data_class is None:
        if settings.data:
            key = next(iter(settings.data))
            raise ConfigError(
                f"'data.{key}' is a setting of a DataModule, but no DataModule is named: pass --data FILE.py:CLASS"
            )
        return None
    target = parse_target(settings.data_class, "data")
    target.make_importable()
    return target


def _trainer(
    settings: Settings, target: AnyTarget, stage: str
) -> tuple[Trainer, ModuleSpec, DataSpec | None]:
    """Return the trainer, and the functions that make the module and the data module in each worker."""
    from stratagem_cli.early import preload_where_likely

    preload_where_likely(settings.selection, settings.strategy, PRELOAD)

    from stratagem_trainer.commands.saved_config import SavedConfig
    from stratagem_trainer.trainer import Trainer

    resolved = resolve_settings(settings, target)
    selection, options, given, _ = trainer_arguments(settings)
    trainer = Trainer(**selection, strategy_options=options, **given)
    if stage == "fit":
        trainer.callbacks.insert(0, SavedConfig(resolved))
        curve = _training_curve()
        if curve is not None and not any(isinstance(callback, curve) for callback in trainer.callbacks):
            trainer.callbacks.append(curve(required=False))
    return trainer, resolved.spec, resolved.data


def _training_curve() -> type[Any] | None:
    """Return the callback that draws metrics; None without stratagem-callbacks, which depends on the trainer."""
    try:
        return stratagem.TrainingCurve  # type: ignore[attr-defined,no-any-return]  # stratagem-facade adds the name
    except ImportError:
        return None


def resolve_settings(settings: Settings, target: AnyTarget) -> Resolved:
    """Return all settings of a fit, including defaults.

    Raises:
        ConfigError, UnknownNameError: a setting is unknown or has the wrong type, or the strategy is unknown.
    """
    from stratagem_trainer.commands.module_spec import DataSpec, ModuleSpec
    from stratagem_trainer.commands.saved_config import Resolved

    _, options, given, defaults = trainer_arguments(settings)
    data_target = _data_target(settings)
    data = None if data_target is None else DataSpec(data_target, settings.data)
    return Resolved(ModuleSpec(target, settings.model), data, settings, options, {**defaults, **given})


def trainer_arguments(
    settings: Settings,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return keywords of `Trainer`: the selection, the strategy's options, other settings, and all defaults.

    Raises:
        ConfigError, UnknownNameError: a setting is unknown or has the wrong type, or the strategy is unknown.
    """
    from stratagem_cli.chosen import checkpoint_component, strategy_component
    from stratagem_cli.typed import defaults_of

    from stratagem import RunConfig
    from stratagem_trainer.arguments import refuse_replaced
    from stratagem_trainer.trainer import Trainer

    selection = dict(settings.selection)
    component = strategy_component(selection) if settings.strategy else None
    options = strategy_settings(settings, component.load() if component is not None else None)
    if settings.checkpoint:
        component = checkpoint_component(selection)
        selection["checkpoint_options"] = checkpoint_settings(
            settings, component.load() if component is not None else None
        )
    parts = {*RunConfig.__dataclass_fields__, "plugins"}
    defaults = {key: value for key, value in defaults_of(Trainer).items() if key not in parts}
    refuse_replaced(settings.trainer)
    given = trainer_settings(settings, Trainer, defaults)
    return flags.runtime_arguments(selection), options, given, defaults
