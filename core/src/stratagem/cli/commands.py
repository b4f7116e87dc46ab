"""The group `stratagem`, whose commands are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

import stratagem
from stratagem.plugins import add_commands


class LazyGroup(click.Group):
    """A group of our own commands, by where they are, and of those that plugins add.

    Args:
        lazy: name → "module:attribute".
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy
        self._asked_plugins = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._ask_plugins()
        return [*self.lazy, *(name for name in super().list_commands(ctx) if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            module, _, attribute = self.lazy[cmd_name].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command
        self._ask_plugins()
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what it returns is no exit code."""
        super().invoke(ctx)

    def _ask_plugins(self) -> None:
        # What a plugin breaks here is shown by `stratagem plugins`; help and other commands go on.
        if not self._asked_plugins:
            self._asked_plugins = True
            add_commands(self)


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
        "conformance": "stratagem.cli.conformance:conformance",
        "new": "stratagem.cli.new:new",
    },
)
commands = click.version_option(stratagem.__version__, prog_name="stratagem")(commands)
