"""`stratagem conformance NAME`: check whether a component does what it declares."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from stratagem_cli.listing import print_json

from stratagem.errors import ConfigError
from stratagem.sdk.catalogue import KINDS, load_catalogue

if TYPE_CHECKING:
    from stratagem_testing.outcome import Outcome


@click.command(
    epilog="\b\nExamples:\n  stratagem conformance ddp --world-size 2",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--kind", type=click.Choice(KINDS), help="Kind of NAME; found automatically by default.")
@click.option("--world-size", "world_sizes", type=int, multiple=True, help="Run only this one (repeatable).")
@click.option("--check", "checks", multiple=True, metavar="CHECK", help="Run only this one (repeatable).")
@click.option(
    "--accelerator", metavar="NAME", help="Accelerator to try strategies on, at the sizes it has devices for."
)
@click.option("--failed", is_flag=True, help="Run only what failed the last time, and hasn't passed since.")
@click.option("--fail-fast", is_flag=True, help="Stop after the first check that fails.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Checks of a strategy to run at a time, each in separate processes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/reference/cli.md lists the keys.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Also write a page to FILE.")
@click.pass_context
def conformance(
    ctx: click.Context,
    names: tuple[str, ...],
    kind: str | None,
    world_sizes: tuple[int, ...],
    checks: tuple[str, ...],
    accelerator: str | None,
    failed: bool,
    fail_fast: bool,
    jobs: int,
    as_json: bool,
    html: str | None,
) -> None:
    """Check that components do what they declare. The exit code is 1 if one doesn't.

    NAME is a strategy, an accelerator, a precision, …: docs/writing-a-plugin.md. A strategy takes a minute or
    two, in processes on this machine.
    """
    from stratagem_testing.commands.last_failed import keep_failed, last_failed
    from stratagem_testing.html import html_page
    from stratagem_testing.report import SUBJECTS, find_component, run_report

    if html is not None and not os.access(Path(html).absolute().parent, os.W_OK):
        raise ConfigError(f"--html {html} can't be written: its folder doesn't exist, or isn't writable")
    if kind not in (None, *SUBJECTS):
        raise ConfigError(f"--kind {kind} has no checks: choose one of {', '.join(SUBJECTS)}")
    catalogue = load_catalogue()
    # Look up all names first, so that a misspelled one fails immediately.
    found = [(name, *find_component(catalogue, name, kind)) for name in names]
    reports: list[dict[str, Any]] = []
    for name, its_kind, component in found:
        if fail_fast and reports and reports[-1]["failed"]:
            break
        pairs = last_failed(name) if failed else None
        if pairs == []:
            click.echo(f"{name}: nothing failed the last time", err=True)
            continue
        with _progress(name, piped=not sys.stderr.isatty()) as tell:
            report = run_report(
                its_kind,
                name,
                component,
                world_sizes=world_sizes,
                only=checks,
                pairs=pairs,
                accelerator=accelerator,
                fail_fast=fail_fast,
                jobs=jobs,
                tell=tell,
            )
        keep_failed(name, report.outcomes)
        reports.append(report.to_json())
        for outcome in report.outcomes:
            if outcome.verdict == "failed" and (output := getattr(outcome.error, "output", "")):
                # Output of the ranks, with the stacks of those that hung.
                click.echo(f"{name}: {outcome.check} on {outcome.world_size}:\n{output}", err=True)
        if not as_json:
            _print(reports[-1])
    if as_json:
        print_json(reports)
    if html is not None:
        Path(html).write_text(html_page(reports), encoding="utf-8")
    if any(report["failed"] for report in reports):
        ctx.exit(1)


@contextmanager
def _progress(name: str, piped: bool) -> Iterator[Callable[[Outcome], None]]:
    """Yield a function that shows the progress on standard error; in a pipe, it prints a line for each check."""
    from rich.console import Console

    if piped:
        yield lambda outcome: click.echo(
            f"{name}: {outcome.check} on {outcome.world_size}: {outcome.verdict}, {outcome.seconds:.1f} s",
            err=True,
        )
        return
    with Console(stderr=True).status(f"{name}: starting processes") as status:
        yield lambda outcome: status.update(
            f"{name}: {outcome.check} on {outcome.world_size}: {outcome.verdict}"
        )


def _print(report: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from stratagem_testing.html import MARKS, grouped

    colours = {"passed": "green", "failed": "red", "skipped": "bright_black", "waived": "yellow"}
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    sizes, rows = grouped(report)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    for size in sizes:
        table.add_column(str(size), justify="center")
    table.add_column("claim, or reason", overflow="fold")
    # Failed checks come first.
    for check, by_size in sorted(rows.items(), key=lambda row: not _has_failed(row[1])):
        marks = [
            f"[{colours[by_size[s]['verdict']]}]{MARKS[by_size[s]['verdict']]}[/]" if s in by_size else ""
            for s in sizes
        ]
        reasons = {f"{o['verdict']}: {o['reason']}": None for o in by_size.values() if o["reason"]}
        table.add_row(
            check, *marks, "\n".join(map(escape, reasons or [next(iter(by_size.values()))["claim"]]))
        )
    tried = " and ".join(filter(None, [", ".join(map(str, sizes[:-1])), str(sizes[-1])])) if sizes else "none"
    console.print(
        f"{report['kind']} {report['name']} of {report['distribution']} {report['version']}, with torch "
        f"{report['torch']}, at world size {tried}"
    )
    console.print(table)
    counts = ", ".join(f"{report[verdict]} {verdict}" for verdict in MARKS)
    console.print(f"{counts} in {report['seconds']:.0f} s")


def _has_failed(by_size: Mapping[int, Mapping[str, Any]]) -> bool:
    return any(outcome["verdict"] == "failed" for outcome in by_size.values())
