"""`stratagem completion`: what makes a shell complete commands, flags and installed names."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem, get_completion_class

from stratagem.sdk.catalogue import Kind, load_catalogue

SHELLS = ("bash", "zsh", "fish")

Completes = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command(
    epilog="\b\nExamples:\n  stratagem completion bash >> ~/.bashrc",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that makes SHELL complete commands, flags and names.

    For bash: eval "$(stratagem completion bash)", in ~/.bashrc; the same for zsh in ~/.zshrc; for fish: stratagem
    completion fish | source.
    """
    from stratagem_cli.commands import commands

    found = get_completion_class(shell)
    assert found is not None, "click completes for all of SHELLS"
    click.echo(found(commands, {}, "stratagem", "_STRATAGEM_COMPLETE").source())


def component_names(kind: Kind) -> Completes:
    """Return what completes a flag's value with the names that the installed plugins offer of a kind."""
    return lambda ctx, param, typed: [
        CompletionItem(name) for name in load_catalogue().names(kind) if name.startswith(typed)
    ]
