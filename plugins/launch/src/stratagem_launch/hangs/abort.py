"""What a process does before it is aborted, as by gloo when ranks call different collectives."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Callable


def call_on_abort(function: Callable[[], object]) -> Callable[[], None]:
    """Call `function` when C++ code aborts this process, then let it continue to its end.

    Python's own handler would wait for the main thread, which waits in the collective. The signal comes from the
    thread that aborts, outside of any allocation, so that Python code may run there once it has the interpreter's
    lock. faulthandler prints no stack to standard error meanwhile: who calls this keeps it.

    Args:
        function: takes no argument.

    Returns:
        What undoes it.
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
