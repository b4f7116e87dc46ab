"""`GroupedCommand`: a command whose help has its options in groups, which other commands may have, too."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import click
import cloup


class GroupedCommand(cloup.Command):
    """Takes copies of the options' groups: cloup keeps in a group the options of the last command that has it."""

    def __init__(self, *args: Any, params: Sequence[click.Parameter] = (), **kwargs: Any) -> None:
        own: dict[int, cloup.OptionGroup] = {}
        for param in params:
            if isinstance(param, cloup.Option) and param.group is not None:
                param.group = own.setdefault(id(param.group), copy(param.group))
        super().__init__(*args, params=list(params), **kwargs)
