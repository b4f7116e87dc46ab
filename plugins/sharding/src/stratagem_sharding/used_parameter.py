"""Find the parameter that a line of the user's code used when torch raised, to name it in the error message."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from torch import nn

from stratagem_sharding.torch_private import own_children, own_parameters

__all__ = ["parameter_used_in"]

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[\d+\])+")


def parameter_used_in(traceback: TracebackType | None, names: Mapping[int, str]) -> str | None:
    """Return the name of the parameter that a source line of the traceback uses, such as "a.b.weight".

    The innermost line is searched first.

    Args:
        traceback: traceback of the error.
        names: id → name of each parameter to look for.
    """
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    for frame, line in reversed(frames):
        for dotted in _DOTTED.findall(linecache.getline(frame.f_code.co_filename, line)):
            first, *rest = re.findall(r"\w+", dotted)
            value: Any = frame.f_locals.get(first)
            for part in rest:
                if isinstance(value, nn.Module):
                    # getattr could run a property's code.
                    value = own_children(value).get(part, own_parameters(value).get(part))
                if value is None or id(value) in names:
                    break
            if id(value) in names:
                return names[id(value)]
    return None
