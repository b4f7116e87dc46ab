"""Imported first inside the fork server, and nowhere else: what the server does before torch is there."""

from __future__ import annotations

import gc
import os
import signal

from stratagem_launch.fork_server import OWNER
from stratagem_launch.guard import SAVED_FROM, die_with_parent, set_pdeathsig_in_children

_has_forked = False


def _keep_imports() -> None:
    """Put what was imported out of the collector's reach: workers neither walk nor copy it."""
    global _has_forked
    if not _has_forked:
        _has_forked = True
        gc.freeze()
        gc.enable()


def _obey_again() -> None:
    """In a process that the server has forked: the process that terminates it waits for its end."""
    for number in SAVED_FROM:
        signal.signal(number, signal.SIG_DFL)


# Collections amid imports find next to nothing, and take a fifth of the time that torch's take.
gc.disable()
os.register_at_fork(before=_keep_imports)

_owner = os.environ.pop(OWNER, "")
if _owner:
    # multiprocessing ignores Ctrl-C in the server only once all modules have been imported.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A signal to a whole group of processes is for the others to obey: workers end with this one.
    for _number in SAVED_FROM:
        signal.signal(_number, signal.SIG_IGN)
    os.register_at_fork(after_in_child=_obey_again)
    die_with_parent()
    set_pdeathsig_in_children()
    if os.getppid() != int(_owner):
        os._exit(1)
