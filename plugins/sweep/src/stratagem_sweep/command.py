"""`stratagem sweep`: many fits by a search over settings."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click
import cloup
from stratagem_cli.listing import as_json, print_json, print_table

from stratagem.errors import ConfigError
from stratagem_sweep.plan import PRUNERS, RECORD, SAMPLERS, SweepPlan
from stratagem_sweep.sweep import RunResult, Sweep, words_for

_DEFAULT_RUNS = 8
_REFUSED = {
    "run_dir": "each run has its own folder in the sweep's: name that with --sweep-dir",
    "on": "a sweep starts its runs on this machine",
    "print_config": "the runs' configurations differ: stratagem fit --print-config prints one",
    "ckpt_path": "each run of a sweep starts without a checkpoint, or goes on from its own checkpoint; "
    "--set trainer.initial_weights=PATH begins with weights",
}
"""Keywords of `fit` that a sweep decides → why."""


@cloup.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\n"
    "Examples:\n"
    "  stratagem sweep digits.py:Digits --search lr=1e-4:1e-1:log --search hidden=32,64 --max-epochs 5\n"
    "  stratagem sweep --resume runs/20261127-120000-sweep",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="TARGET [OPTIONS OF FIT]")
@click.option(
    "--search",
    multiple=True,
    metavar="NAME=VALUES",
    help="A setting to vary, as lr=1e-4:1e-1:log, layers=1:8, dropout=0:0.5:0.1 or hidden=32,64; as in --set, a name "
    "may have a section, and one without is an argument of the module (repeatable).",
)
@click.option("--monitor", metavar="METRIC", help="The metric that decides; val_loss if not given.")
@click.option("--mode", type=click.Choice(["min", "max"]), help="Which values are better; min if not given.")
@click.option(
    "--runs", type=click.IntRange(1), help="How many runs; 8 if not given, and all combinations of a grid."
)
@click.option("--parallel", type=click.IntRange(1), help="How many runs at a time; 1 if not given.")
@click.option(
    "--slot",
    "slots",
    multiple=True,
    metavar="DEVICES",
    help="Devices of one run at a time, as --slot 0,1 --slot 2,3, instead of --parallel and --devices (repeatable).",
)
@click.option("--sampler", type=click.Choice(SAMPLERS), help="How settings are chosen; tpe if not given.")
@click.option("--pruner", type=click.Choice(PRUNERS), help="Which runs end early; none if not given.")
@click.option("--search-seed", type=click.IntRange(0), help="Of the sampler; 0 if not given.")
@click.option(
    "--sweep-dir", metavar="FOLDER", help="Where the sweep leaves its runs; runs/TIME-sweep if not given."
)
@click.option(
    "--resume", metavar="FOLDER", help="Go on with the sweep in FOLDER; --runs may raise its number."
)
@as_json
def sweep(words: Sequence[str], **keywords: Any) -> None:
    """Train TARGET with many settings, and list the runs by a metric.

    All options of `stratagem fit` may follow TARGET. Each run is a fit in its own processes, with its own folder.
    """
    if keywords["resume"] is None:
        plan, folder = _new_plan(words, keywords), _new_folder(keywords["sweep_dir"])
    else:
        plan, folder = _resumed_plan(words, keywords), os.path.abspath(keywords["resume"])
    parallel = _check(plan, keywords)
    os.makedirs(folder, exist_ok=True)
    plan.write(folder)
    runs = Sweep(plan, folder, parallel)
    click.echo(f"  {'sweep':<12}{_shown(folder)}", err=True)
    try:
        runs.run()
    except KeyboardInterrupt:
        _report(runs, keywords["as_json"])
        click.echo(f"go on: stratagem sweep --resume {shlex.quote(_shown(folder))}", err=True)
        raise
    _report(runs, keywords["as_json"])
    results = runs.results()
    if all(result.state == "failed" for result in results):
        click.get_current_context().exit(1)


def _new_plan(words: Sequence[str], keywords: dict[str, Any]) -> SweepPlan:
    if not keywords["search"]:
        raise ConfigError("--search is missing: name a setting to vary, as --search lr=1e-4:1e-1:log")
    plan = SweepPlan(
        words=tuple(words),
        search=tuple(keywords["search"]),
        monitor=keywords["monitor"] or "val_loss",
        mode=keywords["mode"] or "min",
        runs=keywords["runs"] or _DEFAULT_RUNS,
        sampler=keywords["sampler"] or "tpe",
        pruner=keywords["pruner"] or "none",
        seed=keywords["search_seed"] or 0,
        cwd=os.getcwd(),
    )
    if plan.sampler == "grid":
        size = len(plan.grid())
        plan = replace(plan, runs=min(keywords["runs"] or size, size))
    return plan


def _resumed_plan(words: Sequence[str], keywords: dict[str, Any]) -> SweepPlan:
    given = [
        name
        for name in ("search", "monitor", "mode", "sampler", "pruner", "search_seed", "sweep_dir")
        if keywords[name] not in (None, ())
    ]
    if words or given:
        first = words[0] if words else "--" + given[0].replace("_", "-")
        raise ConfigError(f"--resume goes on with the settings of the sweep: leave {first} out")
    plan = SweepPlan.read(keywords["resume"])
    runs = keywords["runs"] or plan.runs
    if runs < plan.runs:
        raise ConfigError(
            f"--runs {runs} is less than the {plan.runs} runs of the sweep in {keywords['resume']}"
        )
    if plan.sampler == "grid" and runs > plan.runs:
        raise ConfigError(f"the grid has {plan.runs} runs: --runs {runs} is more than there are combinations")
    return replace(plan, runs=runs)


def _new_folder(given: str | None) -> str:
    folder = os.path.abspath(given or os.path.join("runs", time.strftime("%Y%m%d-%H%M%S-sweep")))
    if os.path.exists(os.path.join(folder, RECORD)):
        raise ConfigError(
            f"there is a sweep in {_shown(folder)}: go on with it by --resume, or name another folder"
        )
    return folder


def _check(plan: SweepPlan, keywords: dict[str, Any]) -> list[str | None]:
    """Refuse what no run could begin with; return the devices of each run at a time.

    Raises:
        ConfigError, TargetError, UnknownNameError: what to change.
    """
    from stratagem_trainer.commands.stages import fit, read_settings, resolve_settings, trainer_arguments
    from stratagem_trainer.trainer import Trainer

    from stratagem.sdk.runs import assemble

    slots = list(keywords["slots"])
    if slots and keywords["parallel"] is not None:
        raise ConfigError(
            "--slot and --parallel both say how many runs there are at a time: give one of the two"
        )
    first = {each.key: each.choices[0] if each.choices else each.low for each in plan.searched}
    words = words_for(plan.words, first)
    with fit.make_context("stratagem fit", [*words, *(["--devices", slots[0]] if slots else [])]) as context:
        given = context.params
        for name, why in _REFUSED.items():
            if given.get(name) not in (None, False, ()):
                raise ConfigError(f"--{name.replace('_', '-')} isn't for sweeps: {why}")
        settings, target = read_settings(dict(given))
    resolve_settings(settings, target).as_yaml()
    selection, options, further, _ = trainer_arguments(settings)
    run = assemble(Trainer(**selection, strategy_options=options, **further).config)
    if run.environment.creates_processes and run.environment.world_size > 1:
        raise ConfigError("a sweep starts the processes of its runs: call it once, without torchrun or srun")
    if run.plan.num_nodes != 1:
        raise ConfigError("a sweep runs on this machine: leave --num-nodes out")
    accelerator = run.of_kind("accelerator").name
    if (keywords["parallel"] or 1) > 1 and accelerator != "cpu":
        raise ConfigError(
            f"with --parallel {keywords['parallel']} all runs would take the same {accelerator} devices: give each "
            "its own, as --slot 0,1 --slot 2,3"
        )
    return slots or [None] * (keywords["parallel"] or 1)


def _report(runs: Sweep, as_json: bool) -> None:
    results, plan = runs.results(), runs.plan
    if as_json:
        print_json([asdict(result) for result in results])
        return
    keys = [each.key for each in plan.searched]
    rows = [
        [
            str(result.number),
            result.state,
            "" if result.value is None else f"{result.value:.6g}",
            *(_short(result.settings.get(key, "")) for key in keys),
            result.error or _shown(result.folder),
        ]
        for result in results
    ]
    print_table(["run", "state", plan.monitor, *keys, "folder, or why it failed"], rows)
    best = results[0] if results and results[0].state == "finished" else None
    if best is not None:
        click.echo(f"best  run {best.number}, {plan.monitor} {best.value:.6g}: {_command(best)}")


def _command(best: RunResult) -> str:
    return f"stratagem fit --config {shlex.quote(_shown(os.path.join(best.folder, 'config.yaml')))}"


def _short(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return text
    return text if number.is_integer() else f"{number:.4g}"


def _shown(folder: str) -> str:
    """Return a path from the current folder, where it is in there."""
    relative = os.path.relpath(folder)
    return folder if relative.startswith("..") else relative
