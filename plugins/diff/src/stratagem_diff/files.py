"""The files of a record: per rank a JSON file with what was recorded, and tensors per step; nothing is pickled.

RECORD/rank-0/record.json      which values were recorded, in order, and the digest of each other file
RECORD/rank-0/step-1.safetensors
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from stratagem.errors import UsageError
from stratagem_diff.values import Shard, Value

FORMAT = "stratagem-diff 1"


@dataclass(frozen=True)
class Place:
    """What a value is of, the same on every rank and in every run."""

    step: int
    """Optimizer step, counted from 1; 0 for what the run began with."""
    kind: str
    """One of `KINDS`."""
    name: str
    """Of the module, or of the parameter or buffer, in the user's model."""
    call: int = 0
    """Which call of the module within the micro-batch."""
    item: str = ""
    """Which tensor of an output, as "0" or "logits"; of an optimizer's state, as "exp_avg"."""


KINDS = (
    "start",
    "input",
    "output",
    "output gradient",
    "parameter gradient",
    "optimizer state",
    "parameter",
    "buffer",
)
"""What is recorded, in the order in which it comes about in a step."""


@dataclass(frozen=True)
class Entry:
    """One recorded value."""

    place: Place
    micro_batch: int
    value: Value


@dataclass(frozen=True)
class ModelInfo:
    """What the user's model is made of."""

    modules: Mapping[str, str] = field(default_factory=dict)
    """Name → class, in the order of `named_modules`."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Further name of a parameter that has several → its first name."""


@dataclass(frozen=True)
class RankRecord:
    """What one rank recorded."""

    rank: int
    world_size: int
    steps: int
    model: ModelInfo
    facts: Mapping[str, Any]
    """Versions, threads, and what was said about the run, such as `rounding`."""
    entries: Sequence[Entry]


class RankWriter:
    """Writes one rank's record, a file per step.

    Args:
        folder: of the record; the folder of this rank in it is replaced.
        rank: this one.

    Raises:
        UsageError: the folder can't be made.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self.path = Path(folder) / f"rank-{rank}"
        try:
            if self.path.exists():
                shutil.rmtree(self.path)
            self.path.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"the record can't be written into {self.path}: {error.strerror}") from error
        self._entries: list[dict[str, Any]] = []
        self._digests: dict[str, str] = {}

    def write_step(self, entries: Sequence[Entry]) -> None:
        """Write what was recorded since the last call."""
        if not entries:
            return
        name = f"step-{len(self._digests)}.safetensors"
        tensors: dict[str, Tensor] = {}
        for index, entry in enumerate(entries):
            tensors[str(index)] = entry.value.data
            self._entries.append(
                {
                    "file": name,
                    "key": str(index),
                    "place": asdict(entry.place),
                    "micro_batch": entry.micro_batch,
                    "shape": list(entry.value.shape),
                    "shard": None if entry.value.shard is None else asdict(entry.value.shard),
                    "whole": entry.value.is_whole,
                    "dtype": str(entry.value.dtype).removeprefix("torch."),
                }
            )
        save_file(tensors, self.path / name)
        self._digests[name] = hashlib.sha256((self.path / name).read_bytes()).hexdigest()

    def close(
        self, rank: int, world_size: int, steps: int, model: ModelInfo, facts: Mapping[str, Any]
    ) -> None:
        """Write the JSON file, without which a record isn't complete."""
        content = {
            "format": FORMAT,
            "rank": rank,
            "world_size": world_size,
            "steps": steps,
            "modules": dict(model.modules),
            "aliases": dict(model.aliases),
            "facts": dict(facts),
            "files": self._digests,
            "entries": self._entries,
        }
        text = json.dumps(content)
        sealed = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "record": content}
        draft = self.path / "record.json.draft"
        draft.write_text(json.dumps(sealed))
        draft.replace(self.path / "record.json")


def has_record(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is that of a record, complete or not."""
    return any(Path(folder).glob("rank-*/"))


def read_record(folder: str | os.PathLike[str]) -> list[RankRecord]:
    """Return the records of all ranks, in their order.

    Raises:
        UsageError: there is no record, a rank's is missing or not complete, or a file is damaged.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"{path} isn't a folder: give one that `record` has written")
    ranks = sorted(path.glob("rank-*"), key=lambda each: _number(each))
    if not ranks:
        raise UsageError(f"{path} has no record: `python -m stratagem_diff record` writes one")
    records = [_read_rank(each) for each in ranks]
    expected = records[0].world_size
    found = [_number(each) for each in ranks]
    moved = [each for each, record in zip(ranks, records) if record.rank != _number(each)]
    if moved:
        raise UsageError(f"{moved[0]} has the record of another rank: record it again")
    if found != list(range(expected)):
        missing = sorted(set(range(expected)) - set(found))
        what = f"lacks those of ranks {missing}" if missing else f"has those of ranks {found}"
        raise UsageError(f"the record {path} is of {expected} ranks and {what}: record it again")
    return records


def _number(path: Path) -> int:
    digits = path.name.removeprefix("rank-")
    if not digits.isdecimal():
        raise UsageError(f"{path} isn't the folder of a rank: remove it")
    return int(digits)


def _read_rank(path: Path) -> RankRecord:
    file = path / "record.json"
    try:
        sealed = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"the record in {path} isn't complete: the run ended before it was closed") from None
    except ValueError as error:
        raise UsageError(f"{file} is damaged: {error}") from error
    if not isinstance(sealed, dict) or sealed.keys() != {"sha256", "record"}:
        raise UsageError(f"{file} isn't a record of stratagem-diff")
    content = sealed["record"]
    if hashlib.sha256(json.dumps(content).encode()).hexdigest() != sealed["sha256"]:
        raise UsageError(f"{file} is damaged: its digest isn't that of its content")
    if content["format"] != FORMAT:
        found = content["format"]
        raise UsageError(f"{file} has format {found!r}, and this version reads {FORMAT!r}: record it again")
    tensors = {name: _read_tensors(path / name, digest) for name, digest in content["files"].items()}
    entries = [_entry(each, tensors[each["file"]][each["key"]]) for each in content["entries"]]
    model = ModelInfo(content["modules"], content["aliases"])
    return RankRecord(
        content["rank"], content["world_size"], content["steps"], model, content["facts"], entries
    )


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the record lacks {path}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise UsageError(f"{path} is damaged: its digest isn't the one in record.json")
    try:
        return load(data)
    except SafetensorError as error:
        raise UsageError(f"{path} is damaged: {error}") from error


def _entry(written: Mapping[str, Any], data: Tensor) -> Entry:
    shard = written["shard"]
    if shard is not None:
        shard = Shard(tuple(shard["shape"]), tuple(shard["offsets"]), shard["partial"])
    value = Value(data, tuple(written["shape"]), shard, written["whole"], getattr(torch, written["dtype"]))
    return Entry(Place(**written["place"]), written["micro_batch"], value)
