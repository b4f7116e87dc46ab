"""The files of capsules, in a run's folder.

RUN/capsules/1/step-4/segment.json            what the steps after step 4 start from
RUN/capsules/1/step-4/base/                   the checkpoint of step 4, by hard links
RUN/capsules/1/step-4/rank-0/000001.batches   batches and random number generators of rank 0
RUN/capsules/1/step-4/event-0.json            why rank 0 keeps one of these steps

The first number counts starts of the run. Files of batches are those of `torch.save`. Their checksums are compared,
and they are loaded with `weights_only=True`.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from stratagem_capsule.errors import CapsuleError

FOLDER = "capsules"
FORMAT = "stratagem-capsule 1"


@dataclass(frozen=True)
class Base:
    """What the steps of a segment start from."""

    kind: str
    """"checkpoint", or "start" for the beginning of the run, which its seed repeats."""
    path: str = ""
    """Of the checkpoint."""
    checksums: Mapping[str, int] = field(default_factory=dict)
    """Of the parameters and buffers at the beginning of the run, by name."""


@dataclass(frozen=True)
class Segment:
    """The steps after one step, up to the next checkpoint."""

    step: int
    """Optimizer steps before the first."""
    world_size: int
    data_ranks: Sequence[int]
    """For each rank, which part of the data it reads."""
    strategy: str
    module: str
    """Class of the user's module."""
    torch: str
    """Version."""
    base: Base | None = None
    """None as long as its checkpoint isn't complete."""


@dataclass(frozen=True)
class Event:
    """Why a step is kept."""

    step: int
    reason: str
    """"raised", "non-finite" or "chosen"."""
    rank: int
    text: str = ""
    time: float = 0.0
    """Seconds since the epoch."""


def write_segment(folder: Path, segment: Segment) -> None:
    """Write what a segment is, all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "segment.json", json.dumps({"format": FORMAT, **asdict(segment)}).encode())


def read_segment(folder: Path) -> Segment:
    """Return what a segment is.

    Raises:
        CapsuleError: it is missing, damaged or of another version.
    """
    path = folder / "segment.json"
    try:
        content = json.loads(path.read_bytes())
        written = content.pop("format")
        if written != FORMAT:
            raise CapsuleError(f"{path} has format {written!r}, and this version reads {FORMAT!r}")
        base = content.pop("base")
        return Segment(**content, base=None if base is None else Base(**base))
    except FileNotFoundError:
        raise CapsuleError(f"{folder} has no segment.json: the capsule isn't whole") from None
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise CapsuleError(f"{path} is damaged: {error}") from error


def write_event(folder: Path, event: Event) -> None:
    """Note why a step is kept; the first of a rank stays."""
    path = folder / f"event-{event.rank}.json"
    if folder.is_dir() and not path.exists():
        _write(path, json.dumps(asdict(event)).encode())


def read_events(folder: Path) -> list[Event]:
    """Return why steps of a segment are kept, in the order in which it was noted."""
    events = []
    for path in folder.glob("event-*.json"):
        try:
            events.append(Event(**json.loads(path.read_bytes())))
        except (ValueError, TypeError, OSError) as error:
            raise CapsuleError(f"{path} is damaged: {error}") from error
    return sorted(events, key=lambda event: event.time)


def write_batches(path: Path, records: Sequence[Mapping[str, Any]]) -> int:
    """Write records, all of them or nothing, and return the size in bytes."""
    draft = path.with_name(f"{path.name}.draft")
    torch.save(list(records), draft)
    os.replace(draft, path)
    return path.stat().st_size


def read_batches(path: Path) -> list[dict[str, Any]]:
    """Return the records that `write_batches` wrote. Runs no code of the file.

    Raises:
        CapsuleError: it is damaged, cut off, or holds more than values.
    """
    try:
        # What torch.save writes is a zip archive with a checksum of each part, at which torch.load doesn't look.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except OSError as error:
        raise CapsuleError(f"{path} can't be read: {error.strerror}") from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, zlib.error) as error:
        raise CapsuleError(f"{path} is damaged or cut off: {error}") from error
    if damaged is not None:
        raise CapsuleError(f"{path} is damaged: the checksum of {damaged} isn't that of its content")
    try:
        records = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises anything for what it refuses
        raise CapsuleError(
            f"{path} is refused: it holds something else than tensors and values, which could run code"
        ) from error
    if not isinstance(records, list) or not all(isinstance(each, dict) for each in records):
        raise CapsuleError(f"{path} isn't a list of batches")
    return records


def attempts_in(run: Path) -> list[Path]:
    """Return the folders of the starts of a run that kept something, oldest first."""
    return _numbered(run / FOLDER, r"(\d+)")


def segments_in(attempt: Path) -> list[Path]:
    """Return the folders of segments, in the order of their steps."""
    return _numbered(attempt, r"step-(\d+)")


def step_of(segment: Path) -> int:
    """Return the step after which a segment begins."""
    return int(segment.name.removeprefix("step-"))


def _numbered(folder: Path, pattern: str) -> list[Path]:
    if not folder.is_dir():
        return []
    found = {path: re.fullmatch(pattern, path.name) for path in folder.iterdir()}
    return sorted(
        (path for path, match in found.items() if match),
        key=lambda path: int(re.findall(r"\d+", path.name)[-1]),
    )


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)
