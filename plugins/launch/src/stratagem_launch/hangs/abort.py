"""Call a function before C++ code aborts the process, as gloo does when ranks call different collectives."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Callable


def call_on_abort(function: Callable[[], object]) -> Callable[[], None]:
    """Call `function` when C++ code aborts this process, then let it continue to its end.

    A handler of Python's `signal` module would wait for the main thread, which waits in the collective. The signal is
    raised in the aborting thread, outside of any memory allocation: Python code may run there once it has the GIL.
    faulthandler prints no stack to standard error meanwhile; the caller has to record it.

    Args:
        function: takes no argument.

    Returns:
        A function that restores the previous handler.
    """
    if sys.platform != "linux":
        return lambda: None
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype = ctypes.c_void_p
    handler_type = ctypes.CFUNCTYPE(None, ctypes.c_int)

    def handle(number: int) -> None:
        with contextlib.suppress(Exception):
            function()

    kept = handler_type(handle)
    set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
    before = set_handler(signal.SIGABRT, ctypes.cast(kept, ctypes.c_void_p))

    def undo(keeps: object = kept) -> None:  # the kernel has the handler's address
        set_handler(signal.SIGABRT, before)

    return undo
