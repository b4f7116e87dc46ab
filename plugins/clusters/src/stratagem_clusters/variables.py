"""Reading a launcher's variables, with errors that name the variable."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stratagem.errors import UsageError, short


def text(environ: Mapping[str, str], name: str, launcher: str) -> str:
    """Return the variable `name`.

    Args:
        environ: the process's environment variables.
        name: the variable.
        launcher: what sets it, for the error: "torchrun".

    Raises:
        UsageError: it isn't set, or empty.
    """
    value = environ.get(name, "").strip()
    if not value:
        raise UsageError(
            f"{name} isn't set, which {launcher} sets in every process; start the processes with"
            f" {launcher}, or choose another --environment"
        )
    return value


def integer(environ: Mapping[str, str], name: str, launcher: str) -> int:
    """Return the variable `name` as a number of at least 0.

    Raises:
        UsageError: it isn't set, or is no whole number.
    """
    value = text(environ, name, launcher)
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise UsageError(
            f"{name} is {short(value)}, but {launcher} sets it to a whole number of at least 0 and at most"
            f" 18 digits; correct or unset it"
        )
    return int(value)


def first_integer(environ: Mapping[str, str], names: tuple[str, ...], launcher: str) -> int:
    """Return the first of the variables `names` that is set, as `integer` does.

    Raises:
        UsageError: none is set (the error names the first), or it is no whole number.
    """
    present = [name for name in names if environ.get(name, "").strip()]
    return integer(environ, present[0] if present else names[0], launcher)


def incomplete(environ: Mapping[str, str], launcher: str, size: str, *needed: str) -> str | None:
    """Say that a launcher's number of processes is there, and which other variables aren't; None where that isn't so.

    Args:
        environ: the process's environment variables.
        launcher: its name.
        size: the variable with the number of processes; 1 is as good as none.
        needed: the variables by which a process of it is recognised.
    """
    value = environ.get(size, "")
    lacking = [name for name in needed if name not in environ]
    if not lacking or not value.isdecimal() or int(value) < 2:
        return None
    there = f"{size}={int(value)} says that {launcher} has started several processes"
    return f"{there}, but {', '.join(lacking)} aren't set"


def missing(environ: Mapping[str, str], *names: str) -> bool:
    """Whether any of the variables isn't set."""
    return any(name not in environ for name in names)
