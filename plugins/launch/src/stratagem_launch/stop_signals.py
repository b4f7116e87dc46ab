"""Signals to the launching process: forward them to workers that save first, or else end all workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator

from stratagem_launch.guard import is_alive
from stratagem_launch.launch_dir import LaunchDir
from stratagem_launch.preemption import ALLOWED, NOTE

_ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT")


class StopRequest:
    """Whether this launch was asked to stop, and how long its workers may take.

    Args:
        launch_dir: where workers record which signals they obey by saving.

    Attributes:
        number: number of the signal; None until a signal has come that workers obey.
    """

    def __init__(self, launch_dir: LaunchDir) -> None:
        self._launch_dir = launch_dir
        self.number: int | None = None
        self.is_forced = False
        self.grace_period_s = 0.0
        self._until = 0.0

    @property
    def name(self) -> str:
        """Name of the signal."""
        return signal.Signals(self.number or 0).name

    @property
    def is_over(self) -> bool:
        """Whether the workers' grace period is over."""
        return self.number is not None and time.monotonic() > self._until

    def pass_on(self, number: int) -> bool:
        """Send a signal to all workers that obey it; return whether there are any."""
        obeying = 0
        for name in os.listdir(self._launch_dir.path):
            parts = name.split(".")
            if parts[0] != NOTE or len(parts) != 3 or not is_alive(int(parts[2])):
                continue
            with contextlib.suppress(OSError, ValueError):
                note = json.loads(self._launch_dir.get(name))
                if number in note["signals"]:
                    os.kill(int(parts[2]), number)
                    obeying += 1
                    self.grace_period_s = max(self.grace_period_s, note["grace_period_s"])
        if obeying and self.number is None:
            self.number, self._until = number, time.monotonic() + self.grace_period_s
        return obeying > 0

    def force(self) -> None:
        """End the launch, from another thread, when nothing can be saved any more."""
        if not self.is_forced:
            self.is_forced = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


@contextlib.contextmanager
def stop_signals(launch_dir: LaunchDir) -> Iterator[StopRequest]:
    """Forward signals to workers that obey them by saving. Other signals raise SystemExit once workers have ended.

    The elastic agent of some versions of torch leaves its own handlers in place, so the caller's are restored.
    Outside the main thread, Python can't set handlers. There, workers only notice the end of this process.
    """
    request = StopRequest(launch_dir)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if not request.is_forced and request.pass_on(number):
            return
        if name in _ENDING:
            raise SystemExit(128 + (request.number or number))
        # No worker obeys this signal: restore its default action.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    names = [name for name in dict.fromkeys((*_ENDING, *ALLOWED)) if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    before = {number: signal.getsignal(number) for number in (*numbers, signal.SIGINT)}
    for name, number in zip(names, numbers, strict=True):
        own = before[number] in (signal.SIG_DFL, None) or name in _ENDING
        if own and before[number] is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
