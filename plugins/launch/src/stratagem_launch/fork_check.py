"""Whether this process may still be forked: what it has computed can make its children hang."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from stratagem.errors import UsageError

_INSTEAD = 'start the workers before anything is computed, or use start_method="forkserver"'
_PROBE_S = 2.0
_PROBE_ELEMENTS = 1 << 17


def require_forkable(threads: int) -> None:
    """Refuse to fork a process whose children could not compute.

    Args:
        threads: how many torch threads each child is going to use.

    Raises:
        UsageError: this process has initialised a device, has threads of autograd, or a child that
            was forked to try it hung in a small computation.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    device = _initialised_device(torch)
    if device:
        raise UsageError(
            f'start_method="fork" can\'t be used after {device} has been initialised in the launching '
            f"process: {_INSTEAD}"
        )
    if _has_autograd_threads():
        raise UsageError(
            'start_method="fork" can\'t be used after autograd has started threads in the launching '
            f"process (a backward has run): {_INSTEAD}"
        )
    if not _child_computes(torch, threads):
        raise UsageError(
            'start_method="fork" can\'t be used after torch has started its compute threads in the launching '
            f"process, as a large matrix product or a backward does: {_INSTEAD}"
        )


def _initialised_device(torch: Any) -> str | None:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    is_initialized = getattr(torch.get_device_module(accelerator), "is_initialized", None)
    return accelerator.type if is_initialized is not None and is_initialized() else None


def _has_autograd_threads() -> bool:
    threads = Path("/proc/self/task").glob("*/comm")
    return any(thread.read_text().startswith("pt_autograd") for thread in threads)


def _child_computes(torch: Any, threads: int) -> bool:
    """Fork once and compute a little: OpenMP's threads leave no other sign, and hang in a child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, on forking with threads
        pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(threads)
            torch.ones(_PROBE_ELEMENTS).add_(1)
        finally:
            os._exit(0)
    deadline = time.monotonic() + _PROBE_S
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False
