"""`LatestValues`: the latest value of each logged key, and whether loggers and the progress bar get it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratagem_trainer.metrics.accumulator import Value, as_floats

if TYPE_CHECKING:
    from stratagem_trainer.metrics.scope import LogOptions


class LatestValues:
    """The latest value of each key. Values stay tensors until they are read.

    Attributes:
        unlogged: keys that loggers don't get.
        values: by key.
    """

    def __init__(self) -> None:
        self.unlogged: set[str] = set()
        self.values: dict[str, Value] = {}
        self._on_bar: dict[str, None] = {}

    def take(self, values: Mapping[str, Value]) -> None:
        """Update the values."""
        self.values.update(values)

    def note(self, name: str, options: LogOptions) -> None:
        """Note whether the keys of a logged name are for the progress bar and for loggers."""
        for key in options.keys(name):
            if options.prog_bar:
                self._on_bar[key] = None
            if not options.logger:
                self.unlogged.add(key)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the values at the end, whatever is logged meanwhile. A context manager."""
        before = dict(self.values)
        try:
            yield
        finally:
            self.values = before

    def all(self) -> dict[str, float]:
        """Return the latest value of each key. Waits for the device."""
        found = dict(zip(self.values, as_floats(list(self.values.values()))))
        self.values = {**found}
        return found

    def logged(self) -> dict[str, float]:
        """Return the latest values of the keys that loggers get. Waits for the device."""
        return {name: value for name, value in self.all().items() if name not in self.unlogged}

    def on_bar(self) -> dict[str, float]:
        """Return the latest values of the keys that were logged with `prog_bar`. Waits for the device."""
        names = [name for name in self._on_bar if name in self.values]
        return dict(zip(names, as_floats([self.values[name] for name in names])))


def by_key(steps: Sequence[Mapping[str, float]], values: Mapping[str, float]) -> dict[str, float]:
    """Return the last value of each name in the steps' rows. A name's reduced value takes precedence."""
    return {**{key: value for row in steps for key, value in row.items()}, **values}
