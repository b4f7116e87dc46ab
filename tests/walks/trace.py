"""`Trace`: the calls of this project's functions between two points of a program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Place(NamedTuple):
    """A function: the file that has it, below its `src`, and its name."""

    file: str
    function: str


@dataclass(eq=False)
class Call:
    """One call, below the call of this project that led to it."""

    place: Place
    parent: Call | None

    def stack(self) -> list[Call]:
        """From the outermost call to this one."""
        found: list[Call] = []
        call: Call | None = self
        while call is not None:
            found.insert(0, call)
            call = call.parent
        return found


@dataclass(frozen=True)
class Station:
    """A point that a walk passes. One of `ours`, `foreign` and `builtin` says how it is recognised."""

    words: str
    ours: tuple[str, str] | None = None
    """A function of this project: how its file ends, and its name; "" matches any."""
    foreign: tuple[str, str] | None = None
    """A function of a library or of the walk's own program, likewise."""
    builtin: str = ""
    """Name of a function in C that a function of this project calls."""


@dataclass
class Line:
    """A line of the page: a file, the functions that are called in it one after the other, and the stations there."""

    depth: int
    places: list[Place]
    stations: list[str]

    def text(self) -> str:
        functions = " → ".join(place.function for place in self.places)
        stations = f"   ◄ {', '.join(self.stations)}" if self.stations else ""
        return f"{'  ' * self.depth}{self.places[0].file}  {functions}{stations}"


class Trace:
    """What was called while `recording`.

    Comprehensions and the bodies of modules and classes aren't calls that a reader follows: they aren't counted, and
    what they call belongs to the function around them. Calls in other threads aren't seen.

    Args:
        stations: in the order in which they are passed; what comes after the last isn't recorded.
    """

    def __init__(self, stations: list[Station]) -> None:
        self.calls = 0
        self.files: set[str] = set()
        self.edges: set[tuple[Place, Place]] = set()
        self.passed: list[Call] = []
        """The calls in which stations were passed."""
        self.stations = stations
        self._stack: list[Call | None] = []
        self._places: dict[CodeType, Place | None] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the body calls."""
        before: Any = sys.getprofile()
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self._enter(frame.f_code)
        elif event == "return":
            if self._stack:
                self._stack.pop()
        elif event == "c_call" and len(self.passed) < len(self.stations):
            name = getattr(arg, "__name__", "")
            call = self._stack[-1] if self._stack else None
            if name == self._next.builtin and call is not None and self._place(frame.f_code) is not None:
                self.passed.append(call)

    def _enter(self, code: CodeType) -> None:
        above = self._stack[-1] if self._stack else None
        place = self._place(code)
        call = above
        if place is not None:
            call = Call(place, above)
            if self._counts:
                self.calls += 1
                self.files.add(place.file)
            if above is not None and len(self.passed) < len(self.stations):
                self.edges.add((above.place, place))
        self._stack.append(call)
        if call is None or len(self.passed) == len(self.stations):
            return
        pattern = self._next.foreign if place is None else self._next.ours
        if pattern is None:
            return
        file, function = pattern
        if code.co_name == (function or code.co_name) and code.co_filename.endswith(file):
            self.passed.append(call)

    def missed(self) -> list[str]:
        """Return the words for stations that weren't passed."""
        return [station.words for station in self.stations[len(self.passed) :]]

    @property
    def _next(self) -> Station:
        return self.stations[len(self.passed)]

    @property
    def _counts(self) -> bool:
        return 0 < len(self.passed) < len(self.stations)

    def _place(self, code: CodeType) -> Place | None:
        if code not in self._places:
            self._places[code] = place_of(code)
        return self._places[code]


def place_of(code: CodeType) -> Place | None:
    """Return where a function of this project is; None for others, comprehensions, bodies of modules and classes."""
    is_function = code.co_flags & CO_OPTIMIZED and code.co_flags & CO_NEWLOCALS
    path = Path(code.co_filename)
    if not is_function or code.co_name.startswith("<") or ROOT not in path.parents:
        return None
    _, found, inside = path.as_posix().partition("/src/")
    return Place(inside, code.co_name) if found and not path.is_relative_to(ROOT / ".venv") else None


def drawn(trace: Trace) -> list[Line]:
    """Return the hops that a reader follows: what leads to each station, from the nearest call that leads to all."""
    stacks = [call.stack() for call in trace.passed]
    shared = 0
    while all(len(stack) > shared for stack in stacks) and len({id(stack[shared]) for stack in stacks}) == 1:
        shared += 1
    lines: list[Line] = []
    line_of: dict[int, Line] = {}
    for station, stack in zip(trace.stations, stacks):
        above: Line | None = None
        for call in stack[max(shared - 1, 0) :]:
            line = line_of.get(id(call))
            if line is None:
                is_next = above is not None and above is lines[-1] and not above.stations
                if is_next and above is not None and above.places[-1].file == call.place.file:
                    line = above
                    line.places.append(call.place)
                else:
                    line = Line(0 if above is None else above.depth + 1, [call.place], [])
                    lines.append(line)
                line_of[id(call)] = line
            above = line
        line_of[id(stack[-1])].stations.append(station.words)
    return lines
