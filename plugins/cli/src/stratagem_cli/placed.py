"""`--on PLACE`: a command that is checked here, and runs somewhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NoReturn, TypeVar

import click
import cloup

from stratagem.errors import UnknownNameError, UsageError
from stratagem.sdk.catalogue import imported
from stratagem_cli.completion import component_names
from stratagem_cli.grouped import WORDS

F = TypeVar("F", bound=Callable[..., Any])

PLACES = cloup.OptionGroup("Where it runs")
SUBMIT = "stratagem_places.submission:submit"
"""What takes a `Placement` and returns the exit code: of stratagem-places, which builds on this package."""

_VALUED, _SWITCHES = ("--on", "--on-set"), ("--dry-run", "--detach")
_OF_PLACE = ("node_rank", "environment")
"""Fields of `RunConfig` that the place decides."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A command that is to run somewhere else."""

    on: str
    """The place, such as "slurm", or "slurm:a100", which a file describes."""
    sets: tuple[str, ...]
    """KEY=VALUE, of the place's options."""
    dry_run: bool
    detach: bool
    stage: str
    """The command's name."""
    words: tuple[str, ...]
    """What follows it, as it was typed, without flags of places and `--run-dir`."""
    takes_run_dir: bool
    """Whether the command has `--run-dir`."""
    selection: Mapping[str, Any]
    """Fields of `RunConfig` that were given, by whatever means."""
    config: str
    """The resolved configuration as YAML."""
    grace_period_s: float


def place_flags(command: F) -> F:
    """Add `--on` and the flags that go with it; with `is_elsewhere` and `run_elsewhere` in a `GroupedCommand`."""
    for decorate in (
        cloup.option(
            "--detach",
            group=PLACES,
            is_flag=True,
            help="Return once it is submitted; `stratagem logs` and `stratagem stop` find it again.",
        ),
        cloup.option(
            "--dry-run",
            group=PLACES,
            is_flag=True,
            help="Print exactly what --on would submit, and submit nothing.",
        ),
        cloup.option(
            "--on-set",
            "on_sets",
            group=PLACES,
            multiple=True,
            metavar="KEY=VALUE",
            help="An option of the place, as partition=gpu (repeatable).",
        ),
        cloup.option(
            "--on",
            group=PLACES,
            metavar="PLACE",
            shell_complete=component_names("place"),
            help="Run there, as slurm, or slurm:NAME of places.yaml; `stratagem places` lists them.",
        ),
    ):
        command = decorate(command)
    return command


def is_elsewhere(keywords: Mapping[str, Any]) -> bool:
    """Whether a command, which need not have `place_flags`, is to run in another place.

    Raises:
        UsageError: flags of a place without a place.
    """
    if keywords.get("on") is not None:
        return True
    flags = {"--dry-run": "dry_run", "--detach": "detach", "--on-set": "on_sets"}
    given = [flag for flag, name in flags.items() if keywords.get(name)]
    if given:
        raise UsageError(
            f"{', '.join(given)} goes with --on PLACE, and none is given: add it, or leave it out"
        )
    return False


def run_elsewhere(
    keywords: Mapping[str, Any],
    selection: Mapping[str, Any],
    config: str,
    grace_period_s: float = 30.0,
    script_words: int = 0,
) -> NoReturn:
    """Submit the command that is running to the place that it names, and end it.

    Args:
        keywords: of the command.
        selection: fields of `RunConfig` that were given.
        config: the resolved configuration as YAML.
        grace_period_s: what a save may take.
        script_words: how many of the last words are a script and what is for it.

    Raises:
        UsageError: the place, one of its options or the request can't be met.
        click.exceptions.Exit: with the exit code.
    """
    context = click.get_current_context()
    for name in _OF_PLACE:
        if selection.get(name) not in (None, "auto"):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {selection[name]} is decided by the place: leave it out with --on")
    if find_spec(SUBMIT.partition(".")[0]) is None:
        raise UnknownNameError("--on needs a package that isn't installed: pip install stratagem-places")
    words = context.meta[WORDS]
    own, script = words[: len(words) - script_words], words[len(words) - script_words :]
    takes_run_dir = "run_dir" in keywords
    placement = Placement(
        on=keywords["on"],
        sets=tuple(keywords["on_sets"]),
        dry_run=keywords["dry_run"],
        detach=keywords["detach"],
        stage=context.command.name or "",
        words=(*_without(own, (*_VALUED, *(("--run-dir",) if takes_run_dir else ()))), *script),
        takes_run_dir=takes_run_dir,
        selection=selection,
        config=config,
        grace_period_s=grace_period_s,
    )
    context.exit(imported(SUBMIT)(placement))


def _without(words: Sequence[str], valued: Sequence[str]) -> list[str]:
    """Leave out flags of places, in either way of writing a value."""
    kept: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return [*kept, *words[index:]]
        if word in valued:
            index += 1
        elif word not in _SWITCHES and not word.startswith(tuple(f"{flag}=" for flag in valued)):
            kept.append(word)
        index += 1
    return kept
