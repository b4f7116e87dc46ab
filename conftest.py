"""Tests marked `serial` run while no other test does, however many `pytest -n` runs at a time."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from typing import Any

import pytest

# Many processes share few cores here, and sums in one thread are bitwise repeatable.
os.environ["OMP_NUM_THREADS"] = "1"
# Sockets are put there, under the first name that a process has for it: none of a test's own folder, which is
# too long for a socket's path under pytest-xdist.
util.get_temp_dir()

KIT_LONG = re.compile(
    r"/test_conformance\.py::((?!TestDDP::)Test|.*(-4|\[(start_methods|used_on_some_ranks|preemption)(-2)?)\]$)"
)
"""The kit for any strategy but ddp, with four ranks, and its longest checks."""
SERIAL, LOCK = "serial", "stratagem-lock"
ONLY_BY_NAME = ("soak", "sim")
"""Markers of tests that run only where `-m` names them."""
GATE, FIELD = 0, 1
"""Bytes of the file that are locked: who waits for its turn, and who has it."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each worker of pytest-xdist of one file that they lock."""
    node.workerinput[LOCK] = _lock_of(node.config)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let CI run another part of the long tests each time."""
    parser.addoption(
        "--part", type=_part, metavar="K/N", help="only the tests that fall into part K of N, by name"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Register the device sim before any test: torch counts devices in the first backward of a process, once."""
    if "sim" in (session.config.option.markexpr or ""):
        from stratagem_sim.build import is_built
        from stratagem_sim.device import load

        if is_built():
            load()


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    return int(number), int(count)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put serial tests last: while one waits, the others finish what they run, and no more.

    Tests with a marker of `ONLY_BY_NAME` that isn't asked for are left out.
    """
    if config.option.part is not None:
        number, count = config.option.part
        parts: list[list[pytest.Item]] = [[] for _ in range(count)]
        for item in items:
            parts[zlib.crc32(item.nodeid.encode()) % count].append(item)
        items[:] = parts.pop(number - 1)
        config.hook.pytest_deselected(items=list(itertools.chain(*parts)))
    for item in items:
        if KIT_LONG.search(item.nodeid):
            item.add_marker(pytest.mark.long)
    items.sort(key=_is_serial)
    for marker in ONLY_BY_NAME:
        if marker not in (config.option.markexpr or ""):
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
            items[:] = [item for item in items if not item.get_closest_marker(marker)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Wait for this test's turn, before its fixtures are set up and its timeout begins."""
    path = getattr(item.config, "workerinput", {}).get(LOCK)
    if path is None:
        return (yield)
    with _turn(path, alone=_is_serial(item)):
        return (yield)


def _is_serial(item: pytest.Item) -> bool:
    return item.get_closest_marker(SERIAL) is not None


def _lock_of(config: pytest.Config) -> str:
    """Make the file when the first worker asks for it; it goes with the session."""
    if _PATH not in config.stash:
        descriptor, config.stash[_PATH] = tempfile.mkstemp(prefix="stratagem-tests-")
        os.close(descriptor)
        config.add_cleanup(lambda: os.unlink(config.stash[_PATH]))
    return config.stash[_PATH]


_PATH: pytest.StashKey[str] = pytest.StashKey()


@contextmanager
def _turn(path: str, alone: bool) -> Iterator[None]:
    # Locks of a process, which no child inherits and whose end releases them.
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, GATE)  # held by who waits: those that come later stand behind
        fcntl.lockf(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, 1, FIELD)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, GATE)
        yield
