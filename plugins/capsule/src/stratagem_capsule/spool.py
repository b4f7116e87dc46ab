"""`Spool`: writes what is kept of steps from a thread, so that it outlives the process within a moment."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem_capsule.files import write_batches

GATHERED_S = 0.05
"""How long records are gathered for one file."""

Record = Callable[[], dict[str, Any]]
"""Makes a record, on the thread."""


class Spool:
    """Writes records into files of a folder, in their order.

    Args:
        folder: that of this rank in a segment.

    Attributes:
        failure: what kept a file from being written.
    """

    def __init__(self, folder: Path) -> None:
        self.failure: Exception | None = None
        self._queue: queue.SimpleQueue[Record | threading.Event | Path | None] = queue.SimpleQueue()
        self._folder, self._files = folder, 0
        self._thread = threading.Thread(target=self._run, name="capsule", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Write a record soon."""
        self._queue.put(record)

    def flush(self) -> None:
        """Return once all that was put is written."""
        done = threading.Event()
        self._queue.put(done)
        done.wait()

    def move_on(self, folder: Path) -> None:
        """Write what is put from now on into another folder."""
        self._queue.put(folder)

    def close(self) -> None:
        """Write the rest and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            gathered: list[Record] = []
            item = self._queue.get()
            end = time.monotonic() + GATHERED_S
            while callable(item):
                gathered.append(item)
                try:
                    item = self._queue.get(timeout=max(end - time.monotonic(), 0.0))
                except queue.Empty:
                    break
            if gathered and self.failure is None:
                self._write(gathered)
            if isinstance(item, threading.Event):
                item.set()
            elif isinstance(item, Path):
                self._folder, self._files = item, 0
            elif item is None:
                return

    def _write(self, gathered: list[Record]) -> None:
        self._files += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_batches(self._folder / f"{self._files:06}.batches", [make() for make in gathered])
        except Exception as error:  # a thread that ended by it would let `flush` wait forever
            self.failure = error
