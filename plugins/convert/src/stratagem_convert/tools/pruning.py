"""Choose the checkpoints of a folder to remove, and remove them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stratagem_checkpoint.filesystem import Filesystem, filesystem_for
from stratagem_checkpoint.loading import read_manifest
from stratagem_checkpoint.publication import MANIFEST, remove, unfinished
from stratagem_checkpoint.state_files import read_state

from stratagem.errors import CheckpointError, ConfigError

By = Literal["newest", "best"]
Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Entry:
    """A checkpoint in a folder.

    Attributes:
        name: name in the folder.
        step: number of optimizer steps; -1 if unknown.
        scores: score of each callback that ranks checkpoints, by the callback's key.
        best: names of checkpoints that its callbacks consider the best.
        size_bytes: size of its files.
    """

    name: str
    step: int
    scores: Mapping[str, float] = field(default_factory=dict)
    best: frozenset[str] = frozenset()
    size_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """Which checkpoints to remove and to keep. `removed` is in order of age; `kept` is best first, with reasons."""

    folder: str
    removed: list[Entry]
    kept: list[tuple[Entry, str]]


def plan(path: str, keep: int, by: By = "newest", mode: Mode = "min", monitor: str | None = None) -> Plan:
    """Choose the checkpoints to remove from the folder `path`. Removes nothing.

    Targets of links, such as `last`, are kept; so is the best checkpoint of the run.

    Args:
        path: a folder of checkpoints, or its URL.
        keep: minimum number to keep; with `by="best"`, of those with a score.
        by: which ones to keep.
        mode: whether the smallest or the largest score is the best.
        monitor: part of the key of the callback whose scores count, if several rank.

    Raises:
        CheckpointError: there are no checkpoints.
        ConfigError: there are no scores, or several callbacks have some.
    """
    filesystem, folder = filesystem_for(path, MANIFEST)
    if not filesystem.is_directory(folder):
        raise CheckpointError(f"there is no folder {path}; pass the one that has the checkpoints")
    entries = [_entry(filesystem, folder, name) for name in _names(filesystem, folder)]
    if not entries:
        raise CheckpointError(
            f"{path} has no checkpoints; pass the folder that has them, such as runs/NAME/checkpoints"
        )
    entries.sort(key=lambda entry: (-entry.step, entry.name))
    referred = _links(folder, path)
    for name in entries[0].best:
        referred.setdefault(name, "the best of its run")
    ordered = entries if by == "newest" else _by_score(entries, mode, monitor, path)
    kept = [(entry, f"{by} {number}") for number, entry in enumerate(ordered[:keep], 1)]
    kept += [(entry, referred[entry.name]) for entry in ordered[keep:] if entry.name in referred]
    staying = {entry.name for entry, _ in kept}
    return Plan(path, [entry for entry in entries[::-1] if entry.name not in staying], kept)


def carry_out(chosen: Plan) -> None:
    """Remove the checkpoints that `plan` chose."""
    filesystem, folder = filesystem_for(chosen.folder, MANIFEST)
    for entry in chosen.removed:
        try:
            remove(filesystem, filesystem.join(folder, entry.name))
        except OSError as error:
            raise CheckpointError(
                f"{entry.name} in {chosen.folder} can't be removed: {error.strerror}; remove it by hand"
            ) from error


_LAST = dict.fromkeys(("last", "last.ckpt"), "last")


def _names(filesystem: Filesystem, folder: str) -> list[str]:
    return [
        name
        for name in filesystem.names(folder)
        if not name.startswith(".")
        and unfinished(name) is None
        and not os.path.islink(os.path.join(folder, name))
        and filesystem.size(filesystem.join(filesystem.join(folder, name), MANIFEST)) is not None
    ]


def _links(folder: str, path: str) -> dict[str, str]:
    """Return names of checkpoints that are targets of links in the folder → why they are kept."""
    if not os.path.isdir(folder) or "://" in path:
        return dict(_LAST)
    found = dict(_LAST)
    for name in sorted(os.listdir(folder)):
        link = os.path.join(folder, name)
        if os.path.islink(link):
            found[os.path.basename(os.path.realpath(link))] = f"{name} is it"
    return found


def _entry(filesystem: Filesystem, folder: str, name: str) -> Entry:
    path = filesystem.join(folder, name)
    where, manifest = read_manifest(filesystem, path, path)
    state = read_state(filesystem, where, "state", manifest, verify=True)
    callbacks = _mapping(state.get("callbacks"))
    scores, best = {}, set()
    for key, each in callbacks.items():
        its_state = _mapping(each)
        score, best_path = its_state.get("current_score"), its_state.get("best_path")
        if isinstance(score, float):
            scores[str(key)] = score
        if isinstance(best_path, str) and best_path:
            best.add(best_path.rstrip("/").rpartition("/")[2])
    step = _mapping(state.get("progress")).get("step", -1)
    size_bytes = sum(record.size_bytes for record in manifest.files)
    return Entry(name, step if isinstance(step, int) else -1, scores, frozenset(best), size_bytes)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _by_score(entries: list[Entry], mode: Mode, monitor: str | None, path: str) -> list[Entry]:
    keys = {key for entry in entries for key in entry.scores if monitor is None or monitor in key}
    if not keys:
        named = f" of {monitor!r}" if monitor else ""
        raise ConfigError(
            f"no checkpoint in {path} has a score{named}: ModelCheckpoint(monitor=…) saves scores; use --by newest"
        )
    if len(keys) > 1:
        raise ConfigError(
            f"the checkpoints in {path} have scores of several callbacks: choose one with --monitor, by a part of "
            f"its key that the others don't have ({'; '.join(sorted(keys))})"
        )
    (key,) = keys
    sign = 1 if mode == "min" else -1

    def order(entry: Entry) -> tuple[bool, float, int]:
        score = entry.scores.get(key, math.nan)
        return not math.isfinite(score), sign * score if math.isfinite(score) else 0.0, -entry.step

    return sorted(entries, key=order)
