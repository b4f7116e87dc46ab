"""The main loop of a process of `Workers`: run one task after the other."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from stratagem_launch import die_with

SHOW_STACKS = getattr(signal, "SIGUSR2", 0)
"""Signal at which a worker prints the stacks of its threads; 0 on systems without it."""


@dataclass(frozen=True)
class Reply:
    """A rank's result of a task."""

    value: Any = None
    failure: str = ""
    """The traceback, if the task failed."""
    error: BaseException | None = None
    time: float = 0.0


def serve(connection: Connection, output: str, owner: int) -> None:
    """Run tasks until the connection is closed.

    Args:
        connection: receives (pickled (function, args), variables), and sends pickled `Reply` objects.
        output: file for everything that this process prints.
        owner: id of a process. This process ends when the owner ends.
    """
    die_with(owner)
    # Make a session, so that `Workers` can end the processes started here, such as a fork server or loader workers.
    with contextlib.suppress(OSError, AttributeError):
        os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(file, number)
    if hasattr(faulthandler, "register"):
        faulthandler.register(SHOW_STACKS, file=file, all_threads=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)  # many processes share few cores, and sums in one thread are reproducible
    before = dict(os.environ)
    while True:
        try:
            task, environ = connection.recv()
        except EOFError:
            return
        os.environ.clear()
        os.environ.update({**before, **environ})
        random.seed(0)
        torch.manual_seed(0)
        connection.send_bytes(_reply(task))


def _reply(task: bytes) -> bytes:
    try:
        function, args = pickle.loads(task)
        return pickle.dumps(Reply(function(*args)))
    except BaseException as error:  # some of torch's own errors aren't subclasses of Exception
        now, text = time.time(), traceback.format_exc()
        with contextlib.suppress(Exception):
            sent = pickle.dumps(Reply(failure=text, error=error, time=now))
            pickle.loads(sent)
            return sent
        return pickle.dumps(Reply(failure=text, time=now))
