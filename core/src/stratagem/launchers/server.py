"""Imported first inside the fork server, and nowhere else: what the server does before torch is there."""

from __future__ import annotations

import os
import signal

from stratagem.launchers.guard import die_with_parent, share_fate_with_children

OWNER = "STRATAGEM_FORK_SERVER_OWNER"
"""Set, while the server is started, to the id of the process whose end is to end the server."""

_owner = os.environ.pop(OWNER, "")
if _owner:
    # multiprocessing ignores Ctrl-C in the server only once all modules have been imported.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    share_fate_with_children()
    if os.getppid() != int(_owner):
        os._exit(1)
