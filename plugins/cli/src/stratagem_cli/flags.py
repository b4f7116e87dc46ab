"""The flags that select a run's parts, for our commands and for a user's own."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import cloup
from stratagem_facade.former_settings import RENAMED, renamed_selection

from stratagem.errors import ConfigError, SealError, UsageError, WorkerError
from stratagem.sdk.catalogue import KINDS, LOCK_FILE, LOCKED_VARIABLE
from stratagem.sdk.selection import node_count
from stratagem_cli.completion import component_names
from stratagem_cli.reporting import report

F = TypeVar("F", bound=Callable[..., Any])

RUN = cloup.OptionGroup("The run")
NODES = cloup.OptionGroup("Machines and processes")
OUTPUT = cloup.OptionGroup("Output")
PLUGINS = cloup.OptionGroup("Plugins")

_FLAGS: dict[cloup.OptionGroup, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    RUN: (
        ("--strategy", "strategy", {"metavar": "NAME", "help": "As ddp, or DISTRIBUTION:NAME."}),
        ("--accelerator", "accelerator", {"metavar": "NAME", "help": "As cpu or cuda; auto takes the best."}),
        (
            "--devices",
            "devices",
            {"metavar": "N|I,J", "help": "How many (2), all (-1), which (0,2), or auto."},
        ),
        ("--precision", "precision", {"metavar": "NAME", "help": "As 32-true, bf16-mixed or 16-mixed."}),
        (
            "--checkpoint",
            "checkpoint",
            {"metavar": "NAME", "help": "The plugin that writes checkpoints; directory if not given."},
        ),
        ("--seed", "seed", {"type": click.IntRange(0), "help": "For every random number generator."}),
    ),
    NODES: (
        (
            "--num-nodes",
            "num_nodes",
            {
                "metavar": "N|MIN:MAX",
                "callback": lambda ctx, param, value: None if value is None else node_count(value),
                "help": "Machines taking part; between MIN and MAX they may come and go.",
            },
        ),
        (
            "--node-rank",
            "node_rank",
            {
                "type": click.IntRange(0),
                "help": "This machine among them; the rendezvous numbers them if not given.",
            },
        ),
        ("--rdzv-endpoint", "rdzv_endpoint", {"metavar": "HOST:PORT", "help": "Where several nodes meet."}),
        ("--rdzv-backend", "rdzv_backend", {"metavar": "NAME", "help": "How they meet: c10d or etcd-v2."}),
        (
            "--rdzv-conf",
            "rdzv_conf",
            {"metavar": "KEY=VALUE,…", "help": "Settings of the rendezvous: docs/guides/nodes.md."},
        ),
        (
            "--environment",
            "environment",
            {"metavar": "NAME", "help": "Who made the processes; detected if not given."},
        ),
        (
            "--max-restarts",
            "max_restarts",
            {"type": click.IntRange(0), "help": "How often failed workers are started again."},
        ),
    ),
    OUTPUT: (
        (
            "--log-dir",
            "log_dir",
            {"metavar": "FOLDER", "help": "Write what each worker prints into its own file there."},
        ),
        (
            "--log-level",
            "log_level",
            {
                "type": click.Choice(["debug", "info", "warning", "error"]),
                "help": "From which level on what an engine says is shown here, too.",
            },
        ),
        (
            "--check-replicas-every",
            "check_replicas_every",
            {
                "type": click.IntRange(0),
                "metavar": "STEPS",
                "help": "How often ranks that hold copies are compared; 0 for never.",
            },
        ),
    ),
    PLUGINS: (
        (
            "--plugin",
            "only_plugins",
            {
                "multiple": True,
                "metavar": "DISTRIBUTION",
                "help": "Consider only these plugins (repeatable).",
            },
        ),
        (
            "--disable-plugin",
            "without_plugins",
            {"multiple": True, "metavar": "DISTRIBUTION", "help": "Leave these plugins out (repeatable)."},
        ),
        (
            "--use",
            "extensions",
            {
                "multiple": True,
                "metavar": "NAME|MODULE:CLASS",
                "help": "Add an installed extension, or a class with hook wrappers (repeatable).",
            },
        ),
    ),
}

FIELDS: tuple[str, ...] = tuple(name for flags in _FLAGS.values() for _, name, _ in flags)
"""Fields of `RunConfig` that have a flag."""

_NOT_FLAGS = ("accelerator", "strategy")
"""Names in `RENAMED` that are flags today; their old values are checked apart."""


def selection_flags(command: F) -> F:
    """Add the selection flags to a click command, as keywords named after `RunConfig`'s fields.

    `given(keywords)` takes them out again.
    """
    command = cloup.option(
        "--locked",
        group=PLUGINS,
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, param, value: lock_plugins(ctx) if value and not ctx.resilient_parsing else None,
        help=f"Refuse plugins that differ from {LOCK_FILE}, or aren't in it, before they are imported.",
    )(command)
    for old in RENAMED:
        if old not in _NOT_FLAGS:
            command = _old_flag(old)(command)
    for group, flags in reversed(_FLAGS.items()):
        for flag, name, how in reversed(flags):
            kind = name.removesuffix("s")
            names: dict[str, Any] = {"shell_complete": component_names(kind)} if kind in KINDS else {}
            command = cloup.option(flag, name, group=group, **how, **names)(command)
    return command


def lock_plugins(ctx: click.Context) -> None:
    """While this command runs, plugins must be those of the lock file, also in the processes that it starts."""
    if not os.environ.get(LOCKED_VARIABLE):
        os.environ[LOCKED_VARIABLE] = os.path.abspath(LOCK_FILE)
        ctx.call_on_close(lambda: os.environ.pop(LOCKED_VARIABLE, None))


def _old_flag(name: str) -> Callable[[F], F]:
    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            renamed_selection(**{name: value})
            raise ConfigError(  # no strategy is called so
                f"--{name} {value} is now called --use, for extensions, or --plugin, for the only plugins to consider"
            )

    # The value is optional, so that a flag that was a switch gets its answer, too.
    return click.option(
        *{f"--{name}", f"--{name.replace('_', '-')}"},
        name,
        hidden=True,
        expose_value=False,
        is_flag=False,
        flag_value="True",
        callback=refuse,
    )


def given(keywords: dict[str, Any]) -> dict[str, Any]:
    """Take the selection flags out of a command's keywords; those that weren't given are left out.

    Raises:
        ConfigError: a flag has a value of old times, as `--accelerator ddp`.
    """
    flags = {name: keywords.pop(name) for name in FIELDS}
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    renamed_selection(**{name: given[name] for name in _NOT_FLAGS if name in given})
    return given


def runtime_arguments(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `RunConfig` fields into keywords of `Runtime` and `Trainer`."""
    return {("plugins" if name == "extensions" else name): value for name, value in flags.items()}


def options(function: F) -> F:
    """Add the selection flags to your own click command, which gets the `Runtime` that they make.

    The function is called with one more keyword, `runtime`, that isn't launched yet::

        @click.command()
        @click.option("--epochs", default=3)
        @stratagem.options
        def main(runtime, epochs):
            runtime.launch(train, epochs)

    Flags that aren't given keep `Runtime`'s defaults. Requests that can't be met end the command
    with one sentence and exit code 2, a failed worker with its traceback and exit code, as they do
    in `stratagem` itself.
    """

    @functools.wraps(function)
    def command(*args: Any, **keywords: Any) -> Any:
        from stratagem import Runtime

        try:
            runtime = Runtime(**runtime_arguments(given(keywords)))
            return function(*args, runtime=runtime, **keywords)
        except (UsageError, SealError, WorkerError) as error:
            sys.exit(report(error))

    return selection_flags(command)  # type: ignore[return-value]  # click's decorators keep the type of what they get
