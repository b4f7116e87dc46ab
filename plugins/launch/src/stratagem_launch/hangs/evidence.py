"""The evidence about a rank in a hang: its stack, and the collectives that it waits in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sysconfig
from dataclasses import dataclass

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_LIBRARIES = tuple(
    sorted({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")}, key=len, reverse=True)
)
_SAME_SHAPES = ("all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter")
"""Collectives in which all ranks pass tensors of the same shape and dtype."""
_OURS = re.compile(r"[/\\]stratagem(_\w+)?[/\\]")


@dataclass(frozen=True)
class Frame:
    """A line of a Python stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        library = next((path for path in _LIBRARIES if self.file.startswith(f"{path}{os.sep}")), None)
        file = self.file if library is None else os.path.relpath(self.file, library)
        return f"{file}:{self.line} in {self.function}"

    @property
    def is_of_user(self) -> bool:
        """Whether the frame is in the user's code, not in a library or in this package."""
        return not self.file.startswith((*_LIBRARIES, "<")) and not _OURS.search(self.file)


@dataclass(frozen=True)
class Collective:
    """A collective that a rank has started, as recorded by torch's flight recorder."""

    group: str
    number: int
    """Sequence number in its group, from 1."""
    name: str
    """Name of the collective, such as all_reduce."""
    shapes: str
    """Shapes and dtypes of the inputs."""
    is_waiting: bool

    def __str__(self) -> str:
        return f"{self.name} no. {self.number} of group {self.group} ({self.shapes or 'no tensors'})"

    @property
    def what(self) -> tuple[str, str]:
        """The properties that must be equal on all ranks."""
        return self.name, self.shapes if self.name in _SAME_SHAPES else ""


@dataclass(frozen=True)
class Evidence:
    """The evidence about one rank in a hang."""

    rank: int
    host: str
    beats: int
    silent_s: float
    is_stopped: bool = False
    """Whether a signal such as SIGSTOP has stopped it."""
    stack: tuple[Frame, ...] = ()
    """Stack of the main thread, innermost frame first."""
    loader_stack: tuple[Frame, ...] = ()
    """Stack of a data loader's worker, if this rank waits for one."""
    collectives: tuple[Collective, ...] = ()
    """Recorded collectives, the newest last."""

    @property
    def place(self) -> str:
        """The innermost frame in the user's code; without one, the innermost frame."""
        stack = self.loader_stack if self.waits_for_loader and self.loader_stack else self.stack
        if not stack:
            return "an unknown place"
        own = next((frame for frame in stack if frame.is_of_user), None)
        where = str(own or stack[0])
        if self.waits_for_loader:
            where += (
                ", in a worker of its data loader" if self.loader_stack else ", waiting for its data loader"
            )
        return where

    @property
    def waits_for_loader(self) -> bool:
        """Whether the main thread is in a data loader that has workers."""
        return any(frame.file.endswith("dataloader.py") and "data" in frame.function for frame in self.stack)

    @property
    def waits_for_others(self) -> bool:
        """Whether the main thread is in a call of torch.distributed or Stratagem that waits for all ranks."""
        innermost = self.stack[:6]
        return any(
            "/torch/distributed/" in frame.file or "/collectives/" in frame.file for frame in innermost
        )

    @property
    def waiting(self) -> tuple[Collective, ...]:
        """Collectives that haven't finished."""
        return tuple(each for each in self.collectives if each.is_waiting)


def read_stacks(path: str, start: int = 0) -> list[tuple[Frame, ...]]:
    """Return the stacks in a faulthandler file from byte `start` on, the calling or current thread's first."""
    with contextlib.suppress(OSError):
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(start)
            text = file.read()
        stacks: list[tuple[bool, list[Frame]]] = []
        for line in text.splitlines():
            if line.startswith(("Thread ", "Current thread ")):
                stacks.append((line.startswith("Current"), []))
            elif stacks and (match := _FRAME.match(line)):
                stacks[-1][1].append(Frame(match["file"], int(match["line"]), match["function"]))
        # faulthandler lists the main thread last, as the one that was there first.
        ordered = [frames for _, frames in reversed(stacks)]
        return [tuple(frames) for frames in ordered]
    return []


def read_collectives(path: str) -> tuple[Collective, ...]:
    """Return the collectives in a flight recorder dump; empty if there is no dump."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(path, encoding="utf-8") as file:
            entries = json.load(file).get("entries", [])
        return tuple(
            Collective(
                group=_name_of_group(*entry["process_group"]),
                number=int(entry["collective_seq_id"]),
                name=str(entry["profiling_name"]).rpartition(":")[2],
                shapes=", ".join(
                    f"{dtype} {size}" for dtype, size in zip(entry["input_dtypes"], entry["input_sizes"])
                ),
                is_waiting=not entry["retired"],
            )
            for entry in sorted(entries, key=lambda entry: entry["record_id"])
            if not entry["is_p2p"]
        )
    return ()


def _name_of_group(name: str, description: str) -> str:
    """Key of a group: several groups of a mesh's dimension share one description."""
    return "default_pg" if description == "default_pg" else f"{description} {name}".strip()


def size_of(path: str) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
