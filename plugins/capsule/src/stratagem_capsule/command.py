"""`stratagem replay`: runs a kept step again."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace as with_changes
from typing import TYPE_CHECKING, Any

import click
import cloup
from stratagem_cli.listing import print_json
from stratagem_cli.settings import Settings, merged

from stratagem_capsule.errors import CapsuleError

if TYPE_CHECKING:
    from stratagem_capsule.opening import KeptStep

_RUN = cloup.OptionGroup("The replay", help="What isn't given is as in the run.")
_OUTPUT = cloup.OptionGroup("Output")
_NOT_OF_A_REPLAY = (
    *("num_nodes", "node_rank", "rdzv_endpoint", "rdzv_backend", "rdzv_conf", "environment"),
    *("max_restarts", "log_dir", "run_dir"),
)
"""Parts of a run's configuration that say how its processes were started, and where its files are."""


@cloup.command(
    epilog="\b\n"
    "Examples:\n"
    "  stratagem replay runs/20260801-120000-Net --step 1042\n"
    "  stratagem replay runs/20260801-120000-Net --step 1042 --strategy single --pdb",
)
@click.argument("run", metavar="RUN")
@cloup.option(
    "--step",
    group=_RUN,
    type=click.IntRange(1),
    help="Which optimizer step, from 1; without it, the one that raised, isn't finite or was chosen.",
)
@cloup.option("--strategy", group=_RUN, metavar="NAME", help="As single: all ranks' batches in one process.")
@cloup.option("--accelerator", group=_RUN, metavar="NAME", help="As cpu.")
@cloup.option(
    "--use", "extensions", group=_RUN, multiple=True, metavar="NAME", help="Add an extension (repeatable)."
)
@cloup.option(
    "--pdb",
    "use_pdb",
    group=_RUN,
    is_flag=True,
    help="Open the debugger where the step raises or isn't finite, or else where it begins; with --strategy single.",
)
@cloup.option(
    "--json", "as_json", group=_OUTPUT, is_flag=True, help="As JSON: docs/guides/replay.md has the keys."
)
@click.pass_context
def replay(ctx: click.Context, /, run: str, step: int | None, as_json: bool, **keywords: Any) -> None:
    """Run a step again that `--use capsule` kept in the folder RUN, and say what happens in it.

    Under the strategy and on as many processes as in the run, the step is repeated bit for bit; with --strategy
    single within rounding. The exit code is 1 if its losses are others. docs/guides/replay.md.
    """
    config = os.path.join(run, "config.yaml")
    from stratagem_capsule.opening import open_step

    kept = open_step(run, step)
    if not os.path.isfile(config):
        raise CapsuleError(
            f"{run} has no config.yaml, which `stratagem fit` writes, so that its model isn't known: call "
            "stratagem_capsule.replay in the program that trained it"
        )
    settings = _settings(config, kept, keywords)
    report = _replayed(settings, run, kept, use_pdb=keywords["use_pdb"])
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(report.text())
    if not report.is_repeated:
        ctx.exit(1)


def _settings(config: str, kept: KeptStep, keywords: dict[str, Any]) -> Settings:
    """Return the run's settings with what the replay changes."""
    settings = merged([config])
    was = settings.selection.get("strategy")
    given = {key: keywords[key] for key in ("strategy", "accelerator") if keywords[key] is not None}
    selection = {key: value for key, value in settings.selection.items() if key not in _NOT_OF_A_REPLAY}
    selection.update(given)
    if selection.get("strategy") == "single":
        selection["devices"] = 1
    elif kept.segment.world_size > 1:
        selection["devices"] = kept.segment.world_size
    if keywords["use_pdb"] and selection.get("strategy") != "single":
        raise CapsuleError("--pdb needs a single process, which has the terminal: add --strategy single")
    others = [name for name in selection.get("extensions", ()) if name.rpartition(":")[2] != "capsule"]
    selection["extensions"] = (*others, *keywords["extensions"])
    # Options of one strategy aren't another's.
    options = settings.strategy if selection.get("strategy") == was else {}
    return with_changes(settings, selection=selection, strategy=options)


def _replayed(settings: Settings, run: str, kept: KeptStep, *, use_pdb: bool) -> Any:
    """Make the trainer, the model and the data as `stratagem fit` does, and replay."""
    from stratagem_trainer.commands.scheme_target import parse_target
    from stratagem_trainer.commands.stages import resolve_settings, trainer_arguments
    from stratagem_trainer.trainer import Trainer

    from stratagem_capsule.replaying import replay

    if settings.target is None:
        raise CapsuleError(
            f"{run}/config.yaml has no target, so that the model isn't known: use the run's own file"
        )
    target = parse_target(settings.target, "model")
    target.make_importable()
    resolved = resolve_settings(settings, target)
    selection, options, given, _ = trainer_arguments(settings)
    quiet = {
        **dict.fromkeys(
            ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
        ),
        **dict.fromkeys(("min_epochs", "min_steps", "max_time", "time_limit", "model_registry", "profiler")),
        "num_sanity_val_steps": 0,
        **({} if kept.crosses_epochs else {"limit_val_batches": 0}),
    }
    callbacks = given.pop("callbacks", None) or []
    callbacks = [callbacks] if not isinstance(callbacks, (list, tuple)) else callbacks
    used = [each for each in callbacks if not each.is_left_out_of_fast_dev_run]
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            **selection,
            strategy_options=options,
            callbacks=used,
            **{**given, **quiet},
            run_dir=os.path.join(scratch, "run"),
        )
        return replay(trainer, resolved.spec, run, kept.step, datamodule=resolved.data, use_pdb=use_pdb)
