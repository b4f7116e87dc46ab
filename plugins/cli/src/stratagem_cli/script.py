"""`stratagem run`: runs a script with its own training loop, under the run that flags select."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
import cloup

from stratagem.errors import UsageError
from stratagem.sdk.selection import CONFIG_VARIABLE
from stratagem_cli import flags
from stratagem_cli.grouped import GroupedCommand
from stratagem_cli.placed import is_elsewhere, place_flags, run_elsewhere


@cloup.command(
    cls=GroupedCommand,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\n"
    "Examples:\n"
    "  stratagem run train.py --strategy ddp --devices 2\n"
    "  stratagem run --strategy fsdp train.py --lr 0.1",
)
@place_flags
@flags.selection_flags
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(script: str, args: tuple[str, ...], **keywords: Any) -> None:
    """Run SCRIPT in every process of a run, where its Runtime takes the flags given here.

    Flags stand before SCRIPT; what stands after it is for the script.
    """
    given = flags.given(keywords)
    if not os.path.isfile(script):
        raise UsageError(f"SCRIPT {script!r} can't be found: there is no such file")
    if is_elsewhere(keywords):
        content = {"script": script, "args": list(args), **given}
        run_elsewhere(keywords, given, json.dumps(content, indent=2) + "\n", script_words=1 + len(args))

    from stratagem_cli.early import preload_where_likely

    preload_where_likely(given, {})

    from stratagem import RunConfig, Task
    from stratagem.sdk.runs import assemble

    assembled = assemble(replace(RunConfig(), **given))
    launcher = assembled.launcher()
    if launcher.worker_environment is not None:
        given["environment"] = launcher.worker_environment
    launcher.launch(Task(run_script, (os.path.abspath(script), list(args), given), may_exit=True))


def run_script(path: str, args: list[str], given: Mapping[str, Any]) -> None:
    """Run a script as `python path args…` would, with the flags where `Runtime` finds them.

    Called in every process. SystemExit comes out as the script raised it.
    """
    os.environ[CONFIG_VARIABLE] = json.dumps(dict(given))
    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")
