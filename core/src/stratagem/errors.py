"""Every error that Stratagem raises on purpose.

A `UsageError` is for the user: one sentence that says what Stratagem got, what is allowed and what to do. The command
line prints that sentence and exits with 2; nothing on disk has changed by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def short(value: object, limit: int = 80) -> str:
    """Return `repr(value)` for a message. If it is longer than `limit`, its middle is left out."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        return "a number of thousands of digits"
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]} ({len(text)} characters)"


def bytes_text(count: float) -> str:
    """Return a number of bytes in binary units, such as "113.5 KiB", for a message or a page."""
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= 0.9995 * size:  # not "1024.0 KiB"
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return "nearest: …" with up to three names like `name`, for a message.

    Args:
        name: the unknown name.
        known: the known names.
        otherwise: returned if no known name is similar; None returns "there is …" with all of them.
    """
    names = list(dict.fromkeys(known))
    near = get_close_matches(name, names, n=3)
    if near:
        return f"nearest: {', '.join(near)}"
    return f"there is {', '.join(names) or 'none'}" if otherwise is None else otherwise


class StratagemError(Exception):
    """Base of all errors raised by Stratagem. The command line exits with `exit_code`."""

    exit_code = 1


class UsageError(StratagemError):
    """The request can't be met as it is. The message says what to change."""

    exit_code = 2


class UnknownNameError(UsageError):
    """No installed component of this kind has this name."""


class ConflictError(UsageError):
    """Two distributions offer the same name. `distribution:name` selects one."""


class BrokenPluginError(UsageError):
    """The selected plugin can't be loaded. The original error is the cause."""


class ApiVersionError(BrokenPluginError):
    """A plugin was written for a newer plugin API than this core has."""


class LockError(UsageError):
    """The installed plugins aren't those of the lock file, or the lock file can't be read."""


class DeviceError(UsageError):
    """The devices asked for are not available."""


class PrecisionError(UsageError):
    """The precision asked for is not available on this device or with this strategy."""


class CombinationError(UsageError):
    """The chosen components don't work together. The message names the nearest ones that do."""


class ConfigError(UsageError):
    """A setting that doesn't exist or has a value of the wrong type."""


class TargetError(UsageError):
    """The TARGET of a command doesn't name a usable module class."""


class CheckpointError(UsageError):
    """A path isn't a checkpoint, or a checkpoint can't be read or written."""


class DataError(UsageError):
    """The run can't use loaders or batches."""


class ShardedUseError(UsageError):
    """Code used parameters of which this process has only its shard."""


class GradientError(UsageError):
    """Code was about to use a gradient that isn't the average over all ranks. The message names the parameter."""


class LoggingError(StratagemError):
    """Ranks logged different values, or a value that isn't a number."""


class NonFiniteError(StratagemError):
    """A loss or a parameter became NaN or infinite in a run with `terminate_on_nan`."""


class SealError(StratagemError):
    """The hooks of a run don't fit together. It is raised before anything is started."""

    exit_code = 2


class DoubleAnswerError(SealError):
    """Two plugins implement the same hook."""


class UnknownHookError(SealError):
    """A plugin implements a hook that doesn't exist."""


class HookArgumentError(SealError):
    """An implementation takes arguments that its hook doesn't pass."""


class LostMarkerError(SealError):
    """`@hookimpl` is missing: a plugin has no marked method, or a subclass overrides one without the mark."""


class NoneAnswerError(SealError):
    """A hook returned None, in a run that has begun."""

    exit_code = 1


class WrongAnswerError(SealError):
    """A hook returned an object that isn't of its protocol's class, in a run that has begun."""

    exit_code = 1


class DigestMismatchError(StratagemError):
    """The ranks of one run don't run the same components in the same versions."""


class ReplicaError(StratagemError):
    """Copies on different ranks differ. The message names what differs, since when, and the ranks."""


class CollectiveError(StratagemError):
    """A collective failed or timed out. The message names the missing rank, if it is known."""


class RendezvousError(StratagemError):
    """The nodes of a run didn't find each other. The message names the rendezvous."""


class WorkerError(StratagemError):
    """A worker process failed.

    Attributes:
        rank: global rank of the first worker that failed.
        host: name of the host that it ran on.
        traceback: its traceback as text; empty if a signal ended it.
        exit_code: the exit code for the launching command.
    """

    def __init__(
        self, message: str, *, rank: int = 0, host: str = "", traceback: str = "", exit_code: int = 1
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.traceback = traceback
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_worker_error, (str(self), self.rank, self.host, self.traceback, self.exit_code)


def _rebuild_worker_error(message: str, rank: int, host: str, traceback: str, exit_code: int) -> WorkerError:
    return WorkerError(message, rank=rank, host=host, traceback=traceback, exit_code=exit_code)
