"""Setup of the fork server. The server imports this module first, before torch; nothing else imports it."""

from __future__ import annotations

import gc
import os
import signal

from stratagem_launch.fork_server import OWNER
from stratagem_launch.guard import SAVED_FROM, die_with_parent, set_pdeathsig_in_children

_has_forked = False


def _keep_imports() -> None:
    """Freeze imported objects, so that workers' garbage collections neither visit nor copy them."""
    global _has_forked
    if not _has_forked:
        _has_forked = True
        gc.freeze()
        gc.enable()


def _obey_again() -> None:
    """Reset signals in a process that the server has forked, so that it can be terminated by them."""
    for number in SAVED_FROM:
        signal.signal(number, signal.SIG_DFL)


# Garbage collections during imports find almost nothing, and take a fifth of the time of importing torch.
gc.disable()
os.register_at_fork(before=_keep_imports)

_owner = os.environ.pop(OWNER, "")
if _owner:
    # multiprocessing ignores Ctrl-C in the server only once all modules have been imported.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Ignore signals to the whole process group: workers must be able to save, and they end with this process.
    for _number in SAVED_FROM:
        signal.signal(_number, signal.SIG_IGN)
    os.register_at_fork(after_in_child=_obey_again)
    die_with_parent()
    set_pdeathsig_in_children()
    if os.getppid() != int(_owner):
        os._exit(1)
