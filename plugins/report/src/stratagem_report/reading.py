"""Reads a run's folder: its record and its metrics."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import ConfigError
from stratagem_report.files import FOLDER, FORMAT, attempt_folders
from stratagem_report.phases import PHASES
from stratagem_report.settings import read_settings

METRICS = "metrics.csv"
CONFIG = "config.yaml"
_MOST = 2**62
"""Maximum of a number: sums of some thousand numbers are still far below a float's limit."""
_LATEST_S = 10**11
_LARGEST = 1e300
"""Maximum of a metric's value: the difference of two such values is still a float."""


@dataclass(frozen=True)
class Row:
    """Some steps of a rank. The rows before the first step and after the last one have no steps."""

    steps: int
    end_ns: int
    """Nanoseconds since the rank began."""
    samples: int
    ns: tuple[int, ...]
    """Nanoseconds of each phase. They add up to the time since the row before."""

    @property
    def total_ns(self) -> int:
        """Duration."""
        return sum(self.ns)


@dataclass(frozen=True)
class DeviceStep:
    """How long a rank's device took for a sampled step."""

    step: int
    """Number of the step in this attempt, counted from 1."""
    ns: tuple[int, ...]
    """Nanoseconds of each phase. They add up to the device's time for the step."""


@dataclass(frozen=True)
class RankRecord:
    """What one rank wrote in one attempt."""

    rank: int
    began: float
    """Seconds since 1970."""
    header: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    device_steps: list[DeviceStep] = field(default_factory=list)
    """Empty if the device isn't measured."""
    memory: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """(nanoseconds since the rank began, bytes by name)."""
    events: list[dict[str, Any]] = field(default_factory=list)
    end: str | None = None
    """As in the file; None if the process was killed, or is still running."""

    @property
    def wall_ns(self) -> int:
        """Time from the rank's beginning to its last row."""
        return self.rows[-1].end_ns if self.rows else 0

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return sum(row.steps for row in self.rows)


@dataclass(frozen=True)
class RunRecord:
    """A run's folder."""

    path: str
    name: str
    attempts: list[list[RankRecord]]
    """For each start of the run, its ranks in order."""
    metrics: dict[str, list[tuple[float, float]]]
    """Metric → (step, value). A metric whose values can't be drawn has an empty list."""
    not_drawn: dict[str, list[float]] = field(default_factory=dict)
    """Metric → steps at which its value is infinite, NaN, or too large for a chart."""
    settings: dict[str, str] = field(default_factory=dict)
    """Setting → value, such as "model.lr" → "0.005"; empty if the run wrote no `config.yaml`."""

    @property
    def plan(self) -> list[list[str]]:
        """Rows of the last attempt's plan: kind, name, reason."""
        return [list(map(str, row)) for row in self.attempts[-1][0].header.get("plan", [])]

    @property
    def strategy(self) -> str:
        """Name of the strategy; empty if the record has no plan."""
        return next((row[1] for row in self.plan if row[0] == "strategy"), "")


def read_run(path: str) -> RunRecord:
    """Read a run's folder.

    Raises:
        ConfigError: there is no such folder, it has no record, or one of its files is damaged.
    """
    if not os.path.isdir(path):
        raise ConfigError(
            f"there is no run folder {path}: name the folder of a run, as runs/20260131-120000-Net"
        )
    attempts = []
    for folder in _attempts(path):
        files = [name for name in _names(folder) if re.fullmatch(r"rank-\d+\.jsonl", name)]
        ranks = [rank for name in files if (rank := _read_rank(os.path.join(folder, name))) is not None]
        if ranks:
            attempts.append(ranks)
    if not attempts:
        raise ConfigError(
            f"{path} has no record (no rank's file in {FOLDER}/): train with --use record, or plugins=['record']"
        )
    name = os.path.basename(os.path.abspath(path))
    metrics, not_drawn = _read_metrics(os.path.join(path, METRICS))
    return RunRecord(path, name, attempts, metrics, not_drawn, read_settings(os.path.join(path, CONFIG)))


def _attempts(path: str) -> list[str]:
    try:
        return [folder for _, folder in attempt_folders(path)]
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise ConfigError(
            f"{folder} can't be read: {error.strerror}; take it away to see the others"
        ) from error


def _read_rank(path: str) -> RankRecord | None:
    """Read a rank's file; None if it has no line yet."""
    try:
        if not os.path.isfile(path):
            raise ConfigError(f"{path} is no regular file: take it away to see the others")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    # If the machine crashed, the last line may be incomplete: read only complete lines.
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    if not lines:
        return None
    record: RankRecord | None = None
    read = 0
    try:
        for line in lines:
            read += 1
            entry = json.loads(line, parse_constant=_refuse_constant)
            if record is None:
                record = _begun(entry)
            else:
                _add(record, entry)
            if "end" in entry and record is not None:
                record = RankRecord(**{**vars(record), "end": _text(entry["end"])})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is damaged: line {read} isn't a record's ({type(error).__name__}); take the file away to see "
            "the others"
        ) from error
    return record


def _begun(header: dict[str, Any]) -> RankRecord:
    if header["format"] != FORMAT or tuple(header["phases"]) != PHASES:
        raise ValueError("another format")
    began = header["began"]
    if isinstance(began, bool) or not isinstance(began, (int, float)) or not 0 <= began <= _LATEST_S:
        raise ValueError("not a time")
    for name in ("world_size", "data_ranks", "node_rank"):
        _checked(header.get(name, 0))
    for name in ("device", "host", "torch"):
        _text(header.get(name, ""))
    for kind, name, why in header.get("plan", ()):
        _text(kind), _text(name), _text(why)
    return RankRecord(_checked(header["rank"]), float(began), header)


def _add(record: RankRecord, entry: dict[str, Any]) -> None:
    for steps, end_ns, samples, *ns in entry.get("rows", ()):
        record.rows.append(Row(_checked(steps), _checked(end_ns), _checked(samples), _by_phase(ns)))
    for step, *ns in entry.get("device", ()):
        record.device_steps.append(DeviceStep(_checked(step), _by_phase(ns)))
    if "memory" in entry:
        sizes = {_text(name): _checked(size) for name, size in entry["memory"].items()}
        record.memory.append((_checked(entry["at"]), sizes))
    if "event" in entry:
        _check_event(entry)
        record.events.append(entry)


def _check_event(event: dict[str, Any]) -> None:
    name = _text(event["event"])
    _checked(event["step"])
    if name in ("saved", "loaded"):
        _text(event["path"])
    elif name == "untimed":
        _text(event["why"])
    elif name == "slow":
        _checked(event["rank"]), _checked(event["at_step"]), _text(event["phase"])
        if isinstance(event["ratio"], bool) or not 0 <= float(event["ratio"]) < _MOST:
            raise ValueError("not a ratio")


def _by_phase(ns: list[Any]) -> tuple[int, ...]:
    if len(ns) != len(PHASES):
        raise ValueError("another shape")
    return tuple(map(_checked, ns))


def _checked(number: Any) -> int:
    if type(number) is not int or not 0 <= number < _MOST:
        raise ValueError("not a record's number")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    value.encode()  # JSON can have half of a surrogate pair, which can't be written to the page: refuse it here
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _read_metrics(path: str) -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[float]]]:
    """Read complete lines. Return the points of each metric, and the steps whose values can't be drawn."""
    if not os.path.isfile(path):
        return {}, {}
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, csv.Error):
        return {}, {}
    if not rows or rows[0][:2] != ["step", "epoch"]:
        return {}, {}
    names = rows[0][2:]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    odd: dict[str, list[float]] = {}
    for row in rows[1:]:
        if len(row) != len(names) + 2 or not row[0].isdecimal():
            continue
        for name, cell in zip(names, row[2:]):
            try:
                value = float(cell)
            except ValueError:
                continue
            step = float(row[0])
            if not math.isfinite(step):
                continue
            if abs(value) < _LARGEST:  # false for NaN
                found[name].append((step, value))
            else:
                odd.setdefault(name, []).append(step)
    return {name: points for name, points in found.items() if points or name in odd}, odd
