"""The message and the exit code of a command that fails."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

from stratagem.errors import (
    BrokenPluginError,
    RendezvousError,
    SealError,
    StratagemError,
    TargetError,
    UsageError,
    WorkerError,
)

INTERRUPTED = 130

_IMPORTING = (
    "stratagem_trainer/commands/target.py",
    "stratagem/installed/catalogue.py",
    "stratagem/plugin/component.py",
    "importlib/__init__.py",
)
"""Files whose frames lead from our call to what a user's file or a plugin's raised."""

_LONGEST = 2000
"""Characters of a message. Longer ones contain a user's data, and are cut in the middle."""


def run_reporting(command: Callable[[], Any]) -> int:
    """Run `command`; print one sentence for what a person can fix, and return the exit code.

    Errors that aren't meant for the person at the command line are raised on, with their traceback.
    """
    try:
        result = command()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return _say("interrupted", INTERRUPTED)
    except click.ClickException as error:
        if len(error.format_message()) > _LONGEST:
            return _say(f"Error: {_cut(error.format_message())}", error.exit_code)
        error.show()
        return error.exit_code
    except (UsageError, SealError, RendezvousError, WorkerError) as error:
        return report(error)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def report(error: StratagemError) -> int:
    """Print what the person needs of `error`, one sentence last, and return the exit code."""
    if isinstance(error, (TargetError, BrokenPluginError)):
        _print_cause(error)
    elif isinstance(error, WorkerError) and error.traceback:
        print(error.traceback.rstrip(), file=sys.stderr)
    return _say(f"Error: {_one_line(error)}", error.exit_code)


def keep_cause(error: UsageError, cause: BaseException) -> UsageError:
    """Keep the traceback of `cause` with `error`, also when `error` is sent to another process."""
    shown = traceback.TracebackException.from_exception(cause)
    _leave_out_importing(shown)
    error.cause_traceback = "".join(shown.format())  # type: ignore[attr-defined]  # exceptions take any attribute
    return error


def _print_cause(error: UsageError) -> None:
    """Print the original traceback of what couldn't be imported."""
    if error.__cause__ is not None and not hasattr(error, "cause_traceback"):
        keep_cause(error, error.__cause__)
    text = getattr(error, "cause_traceback", "")
    if text:
        print(text.rstrip(), file=sys.stderr)


def _leave_out_importing(shown: traceback.TracebackException) -> None:
    """Leave out the frames that lead from our call to the imported file."""
    frames = list(shown.stack)
    while len(frames) > 1 and (
        frames[0].filename.startswith("<frozen importlib") or _is_ours(frames[0].filename)
    ):
        del frames[0]
    shown.stack = traceback.StackSummary.from_list(frames)


def _is_ours(filename: str) -> bool:
    return filename.replace("\\", "/").endswith(_IMPORTING)


def _one_line(error: BaseException) -> str:
    return _cut(" ".join(str(error).split()))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _say(line: str, code: int) -> int:
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)
    return code
