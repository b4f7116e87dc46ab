"""`stratagem report RUN…`: one page of what runs spent their time on."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from stratagem.errors import ConfigError
from stratagem_report.page.document import document, warnings, words
from stratagem_report.reading import RunRecord, read_run
from stratagem_report.summary import summarize

NAME = "report.html"


@click.command()
@click.argument("runs", nargs=-1, metavar="RUN…")
@click.option(
    "--output", metavar="FILE", help=f"Where the page goes; {NAME} in a single run's folder, or here."
)
def report(runs: Sequence[str], output: str | None) -> None:
    """Write one HTML page of what RUN, a run's folder, or several spent their time on.

    The runs must have been recorded: `--use record`.
    """
    if not runs:
        raise ConfigError("RUN is missing: give the folder of a run, or several")
    summaries = [summarize(run) for run in _read(runs)]
    path = output or (os.path.join(runs[0], NAME) if len(runs) == 1 else NAME)
    page = document(summaries)
    try:
        # A folder's name may have bytes that are no text.
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} can't be written: {reason}; name another file with --output") from error
    for summary in summaries:
        if len(summaries) > 1:
            click.echo(summary.run.name)
        for line in words(summary):
            click.echo(line)
        for line in warnings(summary):
            click.echo(f"slow: {line}")
    click.echo(f"page  {path}")


def _read(paths: Sequence[str]) -> list[RunRecord]:
    """Read runs; those that would share a name are distinguished by their paths."""
    found = [read_run(path) for path in dict.fromkeys(paths)]
    names = [run.name for run in found]
    return [
        run if names.count(run.name) == 1 else RunRecord(run.path, run.path, run.attempts, run.metrics)
        for run in found
    ]
