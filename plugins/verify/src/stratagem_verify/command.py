"""`stratagem verify TARGET --strategy NAME`: check that a strategy trains your module as one process does."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from stratagem_cli import flags
from stratagem_cli.listing import print_json
from stratagem_trainer.commands.stages import read_settings, trainer_arguments

from stratagem.errors import UsageError

if TYPE_CHECKING:
    from stratagem_verify.verification import Verification

DEVICES = 2
"""Default number of devices."""

_COLOURS = {"right": "green", "note": "yellow", "wrong": "red"}
_ORDER = tuple(reversed(_COLOURS))
"""Order of the verdicts in the report: wrong findings come first."""


@click.command(
    epilog="\b\nExamples:\n  stratagem verify digits.py:Digits --strategy fsdp",
)
@click.argument("target", required=False)
@flags.selection_flags
@click.option(
    "--steps", type=click.IntRange(2), default=6, show_default=True, help="Optimizer steps of each run."
)
@click.option("--only", multiple=True, metavar="QUESTION", help="Check only this question (repeatable).")
@click.option("--skip", multiple=True, metavar="QUESTION", help="Don't check this question (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/guides/verify.md lists the keys.")
@click.option(
    "--config",
    "config_files",
    multiple=True,
    metavar="FILE",
    help="A YAML file with settings, as for fit (repeatable).",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting, as for fit: model.hidden=64, trainer.accumulate_grad_batches=2 (repeatable).",
)
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    steps: int,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    as_json: bool,
    **keywords: Any,
) -> None:
    """Check that a strategy trains TARGET as one process does. The exit code is 1 if it doesn't.

    TARGET is file.py:Class or package.module:Class with its own data, or your own training loop, a function of a
    Runtime such as train.py:main. It is trained for a few steps under --strategy, and in one process on the same
    batches. Losses, gradients, weights, buffers, metrics, a resumed run and checkpoints are compared:
    docs/guides/verify.md. The default is 2 devices.
    """
    settings, target = read_settings(keywords)
    selection, options, given, _ = trainer_arguments(settings)
    strategy, devices = selection.pop("strategy", "auto"), selection.pop("devices", DEVICES)
    if strategy == "auto":
        raise UsageError("verify checks one strategy: name it, as in --strategy ddp")
    if selection.get("num_nodes", 1) != 1:
        raise UsageError(
            f"verify runs on this machine only, but num_nodes={selection['num_nodes']} needs more: leave it out"
        )
    from stratagem_trainer.commands.module_spec import ModuleSpec

    from stratagem.sdk.selection import count_of
    from stratagem_verify.own_loop import is_loop, verify_loop
    from stratagem_verify.verification import subject_for
    from stratagem_verify.verification import verify as verified

    count = count_of(devices)
    if count is None or count < 1:
        raise UsageError(f"--devices {devices} is not a number: pass one, as in --devices 2")
    accelerator = _accelerator(selection.pop("accelerator", "auto"), selection)
    with _progress(quiet=as_json or not sys.stderr.isatty()) as tell:
        loop = is_loop(target.load())
        if loop:
            _refuse_for_loops(ctx)
            subject = replace(subject_for(strategy, options or {}), accelerator=accelerator, world_size=count)
            found = verify_loop(target.load, subject, settings={**selection, **given}, tell=tell)
        else:
            found = verified(
                ModuleSpec(target, settings.model),
                strategy,
                devices=count,
                accelerator=accelerator,
                options=options,
                settings={**selection, **given},
                steps=steps,
                only=only,
                skip=skip,
                tell=tell,
            )
    if as_json:
        print_json({"target": str(target), **found.to_json()})
    else:
        click.echo(report(settings.target or str(target), found, sys.stdout.isatty()))
    if not found.is_right:
        ctx.exit(1)


def report(target: str, found: Verification, coloured: bool = False) -> str:
    """Return a report for one screen. Wrong findings come first."""
    width = min(shutil.get_terminal_size((110, 24)).columns, 118)
    lines = [
        f"{target} under {found.strategy} on {found.devices} × {found.accelerator}, {found.precision}, compared with "
        "one process",
        "",
    ]
    for verdict in _ORDER:
        for finding in (each for each in found.findings if each.verdict == verdict):
            head = f"{verdict:<6} {finding.question:<11} "
            text = textwrap.fill(finding.text, width, initial_indent=head, subsequent_indent=" " * len(head))
            mark = click.style(verdict, fg=_COLOURS[verdict], bold=True) if coloured else verdict
            lines.append(mark + text[len(verdict) :])
    if found.first_difference:
        text = f"The first difference between one process (A) and the ranks (B): {found.first_difference}"
        lines += ["", *textwrap.wrap(text, width)]
    counts = {verdict: sum(each.verdict == verdict for each in found.findings) for verdict in _ORDER}
    totals = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return "\n".join([*lines, "", f"{totals} in {found.seconds:.0f} s"])


def _refuse_for_loops(ctx: click.Context) -> None:
    for name in ("steps", "only", "skip"):
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(
                f"--{name} is for modules, but TARGET is your own loop, which runs unchanged: leave it out"
            )


def _accelerator(name: str, selection: dict[str, Any]) -> str:
    """Return the name of the accelerator that a run would have."""
    if name != "auto":
        return name
    from stratagem import RunConfig
    from stratagem.sdk.runs import assemble

    plugins = {key: selection[key] for key in ("only_plugins", "without_plugins") if key in selection}
    return assemble(RunConfig(devices=1, **plugins)).accelerator.name


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on standard error which run is in progress. A context manager."""
    from rich.console import Console

    with Console(stderr=True, quiet=quiet).status("starting processes") as status:
        yield status.update
