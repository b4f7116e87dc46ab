"""`stratagem report RUN…`: one page that shows how runs spent their time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from stratagem_report.summary import Summary

NAME = "report.html"


@click.command(
    epilog="\b\nExamples:\n  stratagem report runs/NAME",
)
@click.argument("runs", nargs=-1, metavar="RUN…")
@click.option(
    "--output", metavar="FILE", help=f"Where the page goes; {NAME} in a single run's folder, or here."
)
@click.option(
    "--follow", is_flag=True, help="Serve the page to browsers of this machine while the run goes on."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="With --follow; any free one by default."
)
def report(runs: Sequence[str], output: str | None, follow: bool, port: int) -> None:
    """Write an HTML page that shows how one or several runs spent their time. RUN is a run's folder.

    The runs must have been recorded: `--use record`.
    """
    if not runs:
        raise ConfigError("RUN is missing: give the folder of a run, or several")
    if port and not follow:
        raise ConfigError("--port is for --follow: give both, or leave --port out")
    if follow:
        if output is not None:
            raise ConfigError("--follow serves the page and writes none: leave --output out")
        _serve(runs, port)
        return
    from stratagem_report.advice import advice
    from stratagem_report.page.document import document
    from stratagem_report.page.sentences import warnings, words

    summaries = _summaries(runs)
    path = output or (os.path.join(runs[0], NAME) if len(runs) == 1 else NAME)
    page = document(summaries)
    try:
        # A folder's name may have bytes that aren't valid text.
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
        for each in advice(summary):
            click.echo(f"advice: {each.text}")
    click.echo(f"page  {path}")


def _serve(runs: Sequence[str], port: int) -> None:
    """Serve the page until Ctrl-C."""
    from stratagem_report.live import LiveServer

    last = _page(runs)  # raises an error now if a run has no record

    def page() -> str:
        nonlocal last
        # If a rank's file has just been created or was removed, keep showing the last page.
        with suppress(ConfigError):
            last = _page(runs)
        return last

    try:
        server = LiveServer(page, port)
    except OSError as error:
        raise ConfigError(
            f"--port {port} can't be used: {error.strerror}; leave it out for a free one"
        ) from error
    with server:
        click.echo(f"page  {server.url}  (Ctrl-C ends)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _page(runs: Sequence[str]) -> str:
    from stratagem_report.page.document import document

    return document(_summaries(runs), live=True)


def _summaries(paths: Sequence[str]) -> list[Summary]:
    """Read and summarize runs. Runs that have the same name are shown by their paths."""
    from stratagem_report.reading import read_run
    from stratagem_report.summary import summarize

    found = [read_run(path) for path in dict.fromkeys(paths)]
    names = [run.name for run in found]
    return [summarize(run if names.count(run.name) == 1 else replace(run, name=run.path)) for run in found]
