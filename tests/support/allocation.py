"""How much memory this process has allocated, as glibc counts it."""

from __future__ import annotations

import ctypes
import gc
import time


class MallInfo(ctypes.Structure):
    """As glibc has it."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def allocated() -> int:
    """Return how many bytes of this process are allocated now, by glibc."""
    gc.collect()
    time.sleep(0.1)  # gloo's threads let go of what was sent
    glibc = ctypes.CDLL(None)
    glibc.mallinfo2.restype = MallInfo
    info = glibc.mallinfo2()
    return int(info.uordblks + info.hblkhd)
