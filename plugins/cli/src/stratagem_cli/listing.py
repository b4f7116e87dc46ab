"""`stratagem strategies | accelerators | plugins`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from stratagem.errors import ConfigError
from stratagem.sdk.catalogue import LOCK_FILE, load_catalogue, refuse_unlocked, write_lock

as_json = click.option("--json", "as_json", is_flag=True, help="As JSON: docs/reference/cli.md has the keys.")


@click.command(
    epilog="\b\nExamples:\n  stratagem strategies\n  stratagem strategies --json",
)
@as_json
def strategies(as_json: bool) -> None:
    """List the installed strategies."""
    from stratagem_cli.survey import strategy_records

    _print_components(strategy_records(load_catalogue()), as_json)


@click.command(
    epilog="\b\nExamples:\n  stratagem accelerators",
)
@as_json
def accelerators(as_json: bool) -> None:
    """List the installed accelerators, and what they find here."""
    from stratagem_cli.survey import accelerator_records

    _print_components(accelerator_records(load_catalogue()), as_json)


@click.group(
    invoke_without_command=True,
    epilog="\b\nExamples:\n  stratagem plugins\n  stratagem plugins check stratagem-ddp",
)
@as_json
@click.pass_context
def plugins(ctx: click.Context, as_json: bool) -> None:
    """List the installed plugins, also those that are broken or left out; `plugins lock` writes them down."""
    from stratagem_cli.survey import plugin_records

    if ctx.invoked_subcommand is not None:
        return
    records = plugin_records(load_catalogue())
    if as_json:
        print_json(records)
        return
    columns = ["distribution", "version", "status", "offers"]
    rows = [
        [record["distribution"], record["version"], record["status"], record["error"] or _offers(record)]
        for record in records
    ]
    print_table(columns, rows)


@plugins.command(
    epilog="\b\nExamples:\n  stratagem plugins lock",
)
@click.option("--file", default=LOCK_FILE, metavar="FILE", show_default=True, help="The lock file.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 2 where it isn't what is installed.")
def lock(file: str, check: bool) -> None:
    """Write names, versions, origins and hashes of the installed plugins to a file; imports none of them."""
    if check:
        refuse_unlocked(os.path.abspath(file), strict=True)
        click.echo(f"{file} is what is installed")
    else:
        click.echo(f"{file}: {', '.join(write_lock(file))}")


@plugins.command(
    epilog="\b\nExamples:\n  stratagem plugins check stratagem-ddp",
)
@click.argument("distribution")
@as_json
@click.option("--index", metavar="FILE", help="Write what an index of known plugins has of it to FILE.")
@click.option("--badge", metavar="FILE", help="Write a badge to FILE, as shields.io reads it.")
@click.pass_context
def check(ctx: click.Context, distribution: str, as_json: bool, index: str | None, badge: str | None) -> None:
    """Check an installed plugin: its names, hooks, API version, targets, and what importing it takes.

    Exit code 1 where something is wrong. `stratagem conformance` checks what its components do.
    """
    from stratagem_cli.plugin_check import check_plugin

    checked = check_plugin(load_catalogue(), distribution)
    for file, value in ((index, checked.index()), (badge, checked.badge())):
        if file is not None:
            _write_json(file, value)
    if as_json:
        print_json(checked.to_json())
    else:
        rows = [["ok" if each.ok else "wrong", each.check, each.detail] for each in checked.findings]
        print_table(["", "check", f"{checked.distribution} {checked.version}"], rows)
    if not checked.ok:
        ctx.exit(1)


def _write_json(file: str, value: Any) -> None:
    try:
        Path(file).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} can't be written: {error.strerror}") from error


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def table_width() -> int:
    """Return how wide tables are: COLUMNS where that is set, the terminal's width, or 160 where there is none."""
    return shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else _columns() or 160


def _columns() -> int | None:
    given = os.environ.get("COLUMNS", "")
    return max(int(given), 40) if given.isdigit() else None


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that is `table_width` wide at most."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=table_width())
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _print_components(records: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(records)
        return
    ordered = sorted(records, key=lambda record: not record["runs_here"])
    if table_width() < _WIDE:
        print_table(["name", "here", "what"], [_narrow_row(record) for record in ordered])
    else:
        columns = ["name", "runs here", "why", "from", "summary", "also as"]
        print_table(columns, [_row(record) for record in ordered])


_WIDE = 130
"""From this width on there is room for six columns."""


def _row(record: Mapping[str, Any]) -> list[str]:
    return [
        record["name"],
        "yes" if record["runs_here"] else "no",
        record["why"],
        f"{record['distribution']} {record['version']}",
        record["summary"],
        ", ".join([*record["aliases"], *record["presets"]]),
    ]


def _narrow_row(record: Mapping[str, Any]) -> list[str]:
    if record["runs_here"]:
        return [record["name"], "yes", record["summary"]]
    return [record["name"], "no", f"{record['summary']}; {record['why']}"]


def _offers(record: Mapping[str, Any]) -> str:
    kinds: dict[str, list[str]] = {}
    for component in record["components"]:
        kinds.setdefault(component["kind"], []).append(component["name"])
    if record["commands"]:
        kinds["command"] = record["commands"]
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items())
