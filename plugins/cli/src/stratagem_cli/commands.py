"""The group `stratagem`, whose commands come from plugins and are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, NoReturn

import click

import stratagem
from stratagem.errors import BrokenPluginError, ConflictError, UnknownNameError, nearest
from stratagem.sdk.catalogue import Origin, command_plugins, load_catalogue, require_locked

OFFERED: dict[str, str] = {
    **dict.fromkeys(("fit", "validate", "test", "predict"), "stratagem-trainer"),
    **dict.fromkeys(("conformance", "new"), "stratagem-testing"),
    "checkpoint": "stratagem-convert",
    "diff": "stratagem-diff",
    "migrate": "stratagem-lightning",
    "replay": "stratagem-capsule",
    "report": "stratagem-report",
    "sweep": "stratagem-sweep",
    "verify": "stratagem-verify",
    **dict.fromkeys(("logs", "places", "runs", "stop"), "stratagem-places"),
}
"""Command → the distribution of ours that adds it, for install hints."""


SECTIONS: dict[str, tuple[str, ...]] = {
    "Train": ("fit", "sweep", "validate", "test", "predict", "run"),
    "Look": ("demo", "example", "strategies", "accelerators", "places", "doctor"),
    "Runs": ("runs", "logs", "stop", "report", "checkpoint"),
    "Trust": ("verify", "diff", "replay", "conformance"),
    "Plugins": ("plugins", "new", "migrate", "completion"),
}
"""Heading of the help → its commands, in order; those of other plugins come last."""


class LazyGroup(click.Group):
    """A click group that also takes commands by where they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy: dict[str, str] = {}

    def add_lazy(self, name: str, target: str) -> None:
        """Add a command that is imported when it, or help, is asked for.

        Args:
            name: as the user types it.
            target: "module:attribute" of a `click.Command`.
        """
        self.lazy[name] = target

    def names(self) -> list[str]:
        """Names of all commands, sorted."""
        return sorted({*self.lazy, *self.commands})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            module, _, attribute = self.lazy[cmd_name].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)


class PluginGroup(LazyGroup):
    """A group of the commands that the installed plugins add."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owners: dict[str, list[Origin]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._ask_plugins()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._ask_plugins()
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is to run.

        Raises:
            ConflictError: several distributions add it.
            UnknownNameError, BrokenPluginError: the distribution that has it isn't installed, or is broken.
        """
        if args[:2] == ["plugins", "lock"]:
            from stratagem_cli.listing import plugins

            return "plugins", plugins, args[1:]
        _lock_if_asked(ctx, args)
        if args[0] in OFFERED and self.get_command(ctx, args[0]) is None:
            _refuse_missing(args[0])
        try:
            found = super().resolve_command(ctx, args)
        except click.UsageError as error:
            said = f"no command {args[0]!r}; {nearest(args[0], self.list_commands(ctx))}"
            raise click.UsageError(said, ctx) from error
        owners = self._owners.get(found[0] or "", ())
        if len(owners) > 1:
            names = " and ".join(map(str, owners))
            raise ConflictError(f"the command {found[0]!r} is offered by {names}: uninstall one")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all commands under the headings of `SECTIONS`, each with its whole sentence."""
        names = self.list_commands(ctx)
        placed = {name for section in SECTIONS.values() for name in section}
        others = {"Of other plugins": tuple(name for name in names if name not in placed)}
        for heading, section in {**SECTIONS, **others}.items():
            found = [(name, self.get_command(ctx, name)) for name in section if name in names]
            rows = [(name, _sentence(command)) for name, command in found if command is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what it returns is no exit code."""
        super().invoke(ctx)

    def _ask_plugins(self) -> None:
        if self._owners:
            return
        # What a plugin breaks here is shown by `stratagem plugins`; help and other commands go on.
        for origin, group, _ in plugin_groups():
            for name in group.names():
                self._owners.setdefault(name, []).append(origin)
            self.lazy.update(group.lazy)
            self.commands.update(group.commands)


def _sentence(command: click.Command) -> str:
    """Return the first paragraph of a command's help, on one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _lock_if_asked(ctx: click.Context, args: list[str]) -> None:
    """Heed `--locked` before any plugin is imported, also those that bring the command."""
    from stratagem_cli import flags

    if args[0] == "run":  # what stands after SCRIPT is the script's
        from stratagem_cli.script import run

        context = click.Context(run, info_name="run", resilient_parsing=True, **run.context_settings)
        given, _, _ = run.make_parser(context).parse_args(args[1:])
        is_locked = bool(given.get("locked"))
    else:
        is_locked = "--locked" in args
    if is_locked:
        flags.lock_plugins(ctx)
        require_locked()


def _refuse_missing(name: str) -> NoReturn:
    for broken in load_catalogue().broken:
        if broken.origin.distribution == OFFERED[name]:
            raise BrokenPluginError(
                f"the command {name!r} comes with {broken.origin}, which can't be loaded: "
                f"{type(broken.error).__name__}: {broken.error}; fix or uninstall it"
            ) from broken.error
    raise UnknownNameError(f"the command {name!r} isn't installed: pip install {OFFERED[name]}")


def plugin_groups() -> Iterator[tuple[Origin, LazyGroup, Exception | None]]:
    """Yield what each plugin adds, and the error of one that fails, which adds nothing."""
    for origin, add in command_plugins():
        group = LazyGroup()
        try:
            add(group)
        except Exception as error:
            yield origin, LazyGroup(), error
        else:
            yield origin, group, None


commands = PluginGroup(
    "stratagem",
    help="Train the same PyTorch model under any distributed strategy, chosen by one flag.",
    epilog="\b\n"
    "Examples:\n"
    "  stratagem example digits\n"
    "  stratagem fit digits.py:Digits --strategy ddp --devices 2",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
commands = click.version_option(stratagem.__version__, prog_name="stratagem")(commands)
