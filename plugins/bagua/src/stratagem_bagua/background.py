"""`BackgroundMean`: a tensor's mean over ranks, found in a thread while training continues."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from stratagem.errors import CollectiveError

POLL_S = 0.001, 0.02
"""How long to wait at first, and at most, before looking again whether all ranks have come."""


class BackgroundMean:
    """Finds means over ranks, one after the other, in its own thread.

    Ranks may submit their tensors at any time: a mean is on its way when the last one has. Nothing is sent before,
    so that `close` never waits for a rank that doesn't come. Not collective.

    Args:
        group: of all ranks, in which no one else talks, and which knows CPU tensors.
        timeout_s: after which a rank that hasn't come is no longer waited for.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        self._group, self._size, self._store = group, dist.get_world_size(group), group.get_group_store()
        self._timeout_s = timeout_s
        self.given = 0
        """How many tensors this rank has submitted."""
        self.ended_at = time.monotonic()
        """When the last mean was taken, or this object was made."""
        self._inbox: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self._outbox: SimpleQueue[torch.Tensor | BaseException] = SimpleQueue()
        self._stopping = threading.Event()
        self.is_busy = False
        """Whether the mean of a submitted tensor isn't taken yet."""
        self._error: CollectiveError | None = None
        self._thread = threading.Thread(target=self._serve, name="bagua-async", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Whether a mean, or an error, is ready to be taken."""
        return not self._outbox.empty()

    def give(self, flat: torch.Tensor) -> None:
        """Submit this rank's tensor, on the CPU, after the last mean was taken. The caller gives up the tensor."""
        if not self.given:
            self._thread.start()
        self.given, self.is_busy = self.given + 1, True
        self._inbox.put(flat)

    def take(self, wait: bool = False) -> torch.Tensor | None:
        """Return the mean minus what this rank submitted, once; None where there is none yet.

        Args:
            wait: until there is one, if a tensor was submitted: all ranks must have.

        Raises:
            CollectiveError: the thread failed, as where another rank has ended.
        """
        if self._error is not None:
            raise self._error
        if not self.is_busy or not (self.is_ready or wait):
            return None
        found = self._outbox.get()
        self.is_busy, self.ended_at = False, time.monotonic()
        if isinstance(found, BaseException):
            self._error = CollectiveError(
                f"averaging in the background has failed, and another rank may have ended: {found}"
            )
            raise self._error from found
        return found

    def close(self) -> None:
        """End the thread. What waits for other ranks is given up; what is being sent is waited for."""
        self._stopping.set()
        self._inbox.put(None)
        if self.given:
            self._thread.join()

    def _serve(self) -> None:
        count = 0
        while (flat := self._inbox.get()) is not None:
            count += 1
            try:
                if not self._all_came(f"given/{count}"):
                    return
                mean = flat.clone()
                dist.all_reduce(mean, group=self._group)
                if dist.get_rank(self._group) == 0:
                    self._store.delete_key(f"given/{count - 1}")
                self._outbox.put(mean.div_(self._size).sub_(flat))
            except BaseException as error:
                self._outbox.put(error)
                return

    def _all_came(self, key: str) -> bool:
        """Tell that this rank has come, and wait for the others; False where this is closed before."""
        pause_s, most_s = POLL_S
        came, until = self._store.add(key, 1), time.monotonic() + self._timeout_s
        while came < self._size:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{self._size - came} of {self._size} ranks didn't come in {self._timeout_s:g} s"
                )
            if self._stopping.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, most_s)
            came = self._store.add(key, 0)
        return True
