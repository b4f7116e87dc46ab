"""The group `stratagem`, whose commands are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

import stratagem
from stratagem.plugins import command_plugins


class LazyGroup(click.Group):
    """A group of commands that are imported when they are asked for: our own, and those that plugins add.

    Args:
        lazy: name → "module:attribute".
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str] = MappingProxyType({}), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy)
        self._asked_plugins = False

    def add_lazy(self, name: str, target: str) -> None:
        """Add a command by where it is.

        Args:
            name: as the user types it.
            target: "module:attribute" of a `click.Command`; imported when the command or help is asked for.

        Raises:
            ValueError: there is a command of that name already.
        """
        if name in self.lazy or name in self.commands:
            raise ValueError(f"there is a command {name!r} already")
        self.lazy[name] = target

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._ask_plugins()
        return sorted({*self.lazy, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            self._ask_plugins()
        if cmd_name in self.lazy:
            module, _, attribute = self.lazy[cmd_name].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what it returns is no exit code."""
        super().invoke(ctx)

    def _ask_plugins(self) -> None:
        # What a plugin breaks here is shown by `stratagem plugins`; help and other commands go on.
        if not self._asked_plugins:
            self._asked_plugins = True
            for _, add in command_plugins():
                with suppress(Exception):
                    add(self)


commands = LazyGroup(
    "stratagem",
    help="Train the same PyTorch model under any distributed strategy, chosen by one flag.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    lazy={
        "fit": "stratagem.cli.stages:fit",
        "validate": "stratagem.cli.stages:validate",
        "test": "stratagem.cli.stages:test",
        "predict": "stratagem.cli.stages:predict",
        "run": "stratagem.cli.script:run",
        "strategies": "stratagem.cli.listing:strategies",
        "accelerators": "stratagem.cli.listing:accelerators",
        "plugins": "stratagem.cli.listing:plugins",
        "doctor": "stratagem.cli.doctor:doctor",
    },
)
commands = click.version_option(stratagem.__version__, prog_name="stratagem")(commands)
