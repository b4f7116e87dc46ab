"""Notice the signals that reach this process, whatever code handles them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

ENDING = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})


@contextlib.contextmanager
def signal_watch() -> Iterator[Callable[[], bool]]:
    """Watch for signals that end a process. Works only in the main thread; elsewhere no signal is noticed.

    Yields:
        A function for any thread that returns whether a signal has come since its last call.
    """
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield lambda: False
        return
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    # Python writes a signal's number to this descriptor even if another library has set the handler.
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    ending = {number for number in signal.Signals if number.name in ENDING}

    def has_come() -> bool:
        try:
            numbers = os.read(reading, 4096)
        except BlockingIOError:
            return False
        if before != -1:  # such as an event loop's
            with contextlib.suppress(OSError):
                os.write(before, numbers)
        return not ending.isdisjoint(numbers)

    try:
        yield has_come
    finally:
        signal.set_wakeup_fd(before)
        has_come()
        os.close(writing)
        os.close(reading)
