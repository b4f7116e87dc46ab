"""`GroupedCommand`: a command whose help has its options in groups, which other commands may have, too."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import click
import cloup

WORDS = "stratagem_cli.words"
"""Key of a context's `meta`: the words after the command's name, as they were given."""


class GroupedCommand(cloup.Command):
    """Takes copies of the options' groups: cloup keeps in a group the options of the last command that has it."""

    def __init__(self, *args: Any, params: Sequence[click.Parameter] = (), **kwargs: Any) -> None:
        own: dict[int, cloup.OptionGroup] = {}
        for param in params:
            if isinstance(param, cloup.Option) and param.group is not None:
                param.group = own.setdefault(id(param.group), copy(param.group))
        super().__init__(*args, params=list(params), **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; the words stay in `ctx.meta`, for `stratagem_cli.placed`."""
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)
