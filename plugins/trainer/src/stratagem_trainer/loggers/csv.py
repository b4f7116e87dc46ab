"""`CSVLogger`: write metrics to a CSV file in the run's folder."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from time import monotonic
from typing import Any

from stratagem.errors import ConfigError, UsageError
from stratagem.sdk.selection import path_text
from stratagem_trainer.loggers.base import Logger, Row
from stratagem_trainer.loggers.folder import versioned

_POSITION = ("step", "epoch")


class CSVLogger(Logger):
    """A file with one line per logged row: step, epoch, and one column per metric, empty if it wasn't logged.

    A new metric gets a new column at the end. The file is then written again and replaced atomically, so that readers
    see either the old or the new file. A resumed run continues the file, without lines of later steps that a killed
    run has written.

    Lines are written to the file by the first `write` after `flush_every_s` seconds, after `buffer_rows` lines, and
    at the end. A killed process loses at most what it logged in the last `flush_every_s` seconds.

    Args:
        save_dir: folder of several runs, each of which gets save_dir/name/version_N; None is the run's folder.
        name: folder in `save_dir`; "" for none.
        version: number or name of the run's folder; None is the next number.
        prefix: for the names of metrics, joined by "-".
        flush_logs_every_n_steps: accepted and ignored; see `flush_every_s` and `buffer_rows`.
        filename: name of the file in the folder.
        flush_every_s: minimum number of seconds between two accesses to the file.
        buffer_rows: maximum number of lines in memory.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        name: str | None = "logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
        *,
        filename: str = "metrics.csv",
        flush_every_s: float = 1.0,
        buffer_rows: int = 10_000,
    ) -> None:
        if not isinstance(filename, str) or not filename or os.path.basename(filename) != filename:
            raise ConfigError(f"CSVLogger got filename={filename!r}; pass a file name without a folder")
        if not flush_every_s >= 0:
            raise ConfigError(f"CSVLogger got flush_every_s={flush_every_s!r}; pass a number of at least 0")
        if not buffer_rows >= 1:
            raise ConfigError(f"CSVLogger got buffer_rows={buffer_rows!r}; pass an integer of at least 1")
        self.filename = filename
        self.flush_every_s = flush_every_s
        self.buffer_rows = buffer_rows
        self.prefix = prefix
        self.path = ""
        self._save_dir = None if save_dir is None else path_text("save_dir", save_dir)
        self._name, self._version = name, version
        self._columns: tuple[str, ...] = ()
        self._lines: list[str] = []
        self._flushed = 0.0
        self._resumed_step = -1
        self._repeated: frozenset[str] = frozenset()

    def open(self, run_dir: str, config: Mapping[str, Any], resumed_step: int | None = None) -> None:
        """Continue an existing file, or prepare to write it with the first row.

        Raises:
            UsageError: the existing file wasn't written by a CSVLogger.
        """
        folder = run_dir
        if self._save_dir is not None:
            folder, self._version = versioned(self._save_dir, self._name, self._version)
            os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, self.filename)
        self._columns, self._lines = (), []
        self._flushed = monotonic()
        self._resumed_step, self._repeated = -1, frozenset()
        if os.path.exists(self.path) and os.path.getsize(self.path):
            self._restore(resumed_step)

    def state_dict(self) -> dict[str, Any]:
        return {"version": self._version, "path": self.path}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._version, self.path = state["version"], state["path"]

    @property
    def name(self) -> str | None:
        return self._name if self._save_dir is not None else None

    @property
    def version(self) -> int | str | None:
        return self._version

    @property
    def save_dir(self) -> str | None:
        return self._save_dir

    @property
    def log_dir(self) -> str | None:
        """Folder of the file, after a fit has opened it; None before."""
        return os.path.dirname(self.path) or None

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write hparams.yaml to the folder of the metrics."""
        if self.is_muted or not self.path:
            return
        import yaml

        path = os.path.join(os.path.dirname(self.path), "hparams.yaml")
        with _named(path), open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump(dict(params), file, sort_keys=False, allow_unicode=True)

    def write(self, rows: Sequence[Row]) -> None:
        if self.prefix:
            rows = [
                Row(row.step, row.epoch, {f"{self.prefix}-{name}": v for name, v in row.values.items()})
                for row in rows
            ]
        names_of = [tuple(row.values) for row in rows]
        known = frozenset(self._columns)
        fresh = dict.fromkeys(
            name for names in dict.fromkeys(names_of) for name in names if name not in known
        )
        if fresh:
            self.flush()
            self._rewrite((*self._columns, *fresh))
        columns, lines = self._columns, self._lines
        cells: Iterable[str]
        for (step, epoch, values), names in zip(rows, names_of):
            if step == self._resumed_step:
                values = {name: value for name, value in values.items() if name not in self._repeated}
                names = tuple(values)
            if not names:
                continue
            if names == columns:
                cells = map(repr, map(float, values.values()))
            else:
                cells = (repr(float(values[name])) if name in values else "" for name in columns)
            lines.append(f"{step},{epoch},{','.join(cells)}\n")
        if len(lines) >= self.buffer_rows or monotonic() - self._flushed >= self.flush_every_s:
            self.flush()

    def flush(self) -> None:
        self._flushed = monotonic()
        if self._lines:
            with _named(self.path), open(self.path, "ab") as file:
                file.write("".join(self._lines).encode())
            self._lines = []

    def close(self, failed: bool = False) -> None:
        self.flush()

    def _restore(self, resumed_step: int | None) -> None:
        header, lines, is_whole = _read(self.path)
        if header[:2] != _POSITION:
            raise UsageError(
                f"{self.path} wasn't written by a CSVLogger (it doesn't begin with step,epoch):"
                " choose another run folder, or move the file away"
            )
        self._columns = header[2:]
        kept = lines
        if resumed_step is not None:
            kept = [line for line in lines if _step(line) <= resumed_step]
            # A resumed run evaluates again at the checkpoint's step. Values that are in the file already are skipped.
            again = [line.rstrip("\n").split(",")[2:] for line in kept if _step(line) == resumed_step]
            self._resumed_step = resumed_step
            self._repeated = frozenset(
                name for cells in again for name, cell in zip(self._columns, cells) if cell
            )
        if not is_whole or len(kept) < len(lines):
            self._replace(self._columns, kept)

    def _rewrite(self, columns: tuple[str, ...]) -> None:
        """Add columns at the end of all existing lines."""
        lines: list[str] = []
        if os.path.exists(self.path) and os.path.getsize(self.path):
            commas = "," * (len(columns) - len(self._columns))
            lines = [f"{line[:-1]}{commas}\n" for line in _read(self.path)[1]]
        self._replace(columns, lines)

    def _replace(self, columns: tuple[str, ...], lines: list[str]) -> None:
        header = StringIO()
        csv.writer(header, lineterminator="\n").writerow((*_POSITION, *columns))
        trial = f"{self.path}.new"
        with _named(trial), open(trial, "w", encoding="utf-8", newline="") as file:
            file.write(header.getvalue())
            file.writelines(lines)
            if lines:
                file.flush()
                os.fsync(file.fileno())
        os.replace(trial, self.path)
        self._columns = columns


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Add the file's name to errors of the system. That of a full disk names no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def _read(path: str) -> tuple[tuple[str, ...], list[str], bool]:
    """Return the header, the complete lines after it, and whether there is nothing else.

    After a crash of the machine, the last line may be incomplete.
    """
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    # Names may contain anything, also line breaks in quotes. Values are plain numbers.
    physical = list(StringIO(text, newline=""))
    reader = csv.reader(physical)
    header = tuple(next(reader, ()))
    rest = physical[reader.line_num :]
    commas = len(header) - 1
    lines = [line for line in rest if line.endswith("\n") and line.count(",") == commas and _step(line) >= 0]
    return header, lines, len(lines) == len(rest)


def _step(line: str) -> int:
    digits = line.partition(",")[0]
    return int(digits) if digits.isdecimal() else -1
