"""`Heartbeat`: shows that this rank makes progress, and writes its stacks and collectives when asked to."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from stratagem_launch.guard import can_answer
from stratagem_launch.hangs.abort import call_on_abort
from stratagem_launch.hangs.files import Beat, RankFiles, beats_in, write_whole
from stratagem_launch.restart_states import LAUNCH_VARIABLE
from stratagem_launch.torch_private import recorded_collectives

if TYPE_CHECKING:
    from typing_extensions import Self

DUMP_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
"""Signal that makes a process write its Python stacks, even if a thread never releases the GIL."""
_POLL_S = 0.25
_PEERS_S = 10.0
"""Maximum time that an ending rank waits for other ranks' files or report; a busy rank answers late."""
_SETTLE_S = 1.5
"""How long ranks without a launcher wait for the files of the other ranks."""


class Heartbeat:
    """The heartbeat of a rank while a run makes progress. A context manager.

    The launching process watches it. Without one, as under srun, a thread of each rank does.

    Args:
        timeout_s: a rank without a heartbeat for so long counts as hanging.
        rank: global rank.
        world_size: number of ranks.
        report_dir: folder for the report of a hang.
        until_exit: whether to watch this process after the run too, for example during its teardown.
    """

    def __init__(
        self, timeout_s: float, rank: int, world_size: int, report_dir: str, until_exit: bool = False
    ) -> None:
        self._timeout_s, self._rank, self._world_size = timeout_s, rank, world_size
        self._report_dir, self._until_exit = report_dir, until_exit
        launch_dir = os.environ.get(LAUNCH_VARIABLE)
        self._is_watched = launch_dir is not None
        self._folder = launch_dir or os.path.join(report_dir, "hang")
        self._files = RankFiles(self._folder, rank, os.getpid())
        self._count = 0
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        os.makedirs(self._folder, exist_ok=True)
        if not self._is_watched:
            self._forget_former_runs()
        self._stacks = open(self._files.stacks, "w")
        if DUMP_SIGNAL is not None:
            faulthandler.register(DUMP_SIGNAL, self._stacks, all_threads=True)
        with open(self._files.beat, "wb") as file:
            file.write(struct.pack("<Q", 0))
        with open(self._files.beat, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        note = {
            "rank": self._rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "timeout_s": self._timeout_s,
            "report_dir": self._report_dir,
            "world_size": self._world_size,
        }
        write_whole(self._files.note, json.dumps(note).encode())
        self._on_abort = call_on_abort(self._before_abort)
        threading.Thread(target=self._serve, name="stratagem-heartbeat", daemon=True).start()
        return self

    def beat(self) -> None:
        """Note that this rank makes progress."""
        self._count += 1
        struct.pack_into("<Q", self._memory, 0, self._count)

    def end(self) -> None:
        """Stop watching this rank."""
        self._ended.set()
        self._on_abort()
        faulthandler.cancel_dump_traceback_later()
        if DUMP_SIGNAL is not None:
            faulthandler.unregister(DUMP_SIGNAL)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._files.note)

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is not None:
            self._leave_collectives()
        self.beat()
        if not (self._is_watched and self._until_exit):
            self.end()

    def _forget_former_runs(self) -> None:
        """Remove the files of a previous process of this rank, which a hang has ended."""
        for beat in beats_in(self._folder):
            if beat.rank == self._rank and beat.files.pid != self._files.pid:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beat.files.note)

    def _serve(self) -> None:
        seen, since = -1, time.monotonic()
        while not self._ended.wait(_POLL_S):
            if os.path.exists(self._files.request):
                self._leave_collectives()
                return
            if self._is_watched:
                continue
            # If a call holds the GIL, this thread doesn't rearm the timer in time, and faulthandler ends the process.
            faulthandler.dump_traceback_later(self._timeout_s + 2.0, exit=True, file=self._stacks)
            now = time.monotonic()
            if self._count != seen:
                seen, since = self._count, now
            elif now - since > self._timeout_s:
                try:
                    self._report_for_all()
                except Exception:
                    traceback.print_exc()  # the process has to end anyway
                for child in multiprocessing.active_children():
                    child.kill()  # a hanging loader worker would outlive this process
                os._exit(1)

    def _leave_collectives(self) -> None:
        with contextlib.suppress(Exception):  # a torch without it, or built without distributed
            write_whole(self._files.collectives, recorded_collectives())

    def _leave_what_is_known(self) -> None:
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._leave_collectives()

    def _before_abort(self) -> None:
        if os.getpid() != self._files.pid:  # a forked loader worker has inherited the handler
            return
        self._leave_what_is_known()
        if self._is_watched:
            self._await_peers()

    def _await_peers(self) -> None:
        """Wait until the other ranks of this node have written their collectives.

        The elastic agent ends the other ranks once this process has ended. A collective that differs from theirs
        aborts this rank, and only their records show the difference.
        """
        peers = [beat.files for beat in beats_in(self._folder) if beat.files.pid != self._files.pid]
        for peer in peers:
            if not os.path.exists(peer.request):
                write_whole(peer.request, b"")
        deadline = time.monotonic() + _PEERS_S
        while time.monotonic() < deadline and any(
            can_answer(peer.pid) and not os.path.exists(peer.collectives) for peer in peers
        ):
            time.sleep(0.02)

    def _report_for_all(self) -> None:
        """Without a launcher: write this rank's evidence. The lowest rank that has done so writes the report."""
        from stratagem_launch.hangs.report import report_hang

        faulthandler.cancel_dump_traceback_later()
        self._leave_what_is_known()
        time.sleep(_SETTLE_S if self._world_size > 1 else 0.0)
        there = [beat for beat in beats_in(self._folder) if os.path.exists(beat.files.collectives)]
        reporter = min(there, key=lambda beat: beat.rank, default=None)
        if reporter is None or reporter.rank == self._rank:
            verdict = report_hang(beats_in(self._folder), self._timeout_s, {})
            print(f"Error: {verdict.sentence}", file=sys.stderr, flush=True)
            write_whole(self._files.reported, b"")
        else:
            self._await_report(reporter)

    def _await_report(self, reporter: Beat) -> None:
        """Wait until `reporter` has reported. The elastic agent would end it as soon as this process ends."""
        is_here = reporter.host == socket.gethostname()
        deadline = time.monotonic() + _PEERS_S
        while time.monotonic() < deadline and not os.path.exists(reporter.files.reported):
            if is_here and not can_answer(reporter.files.pid):
                return
            time.sleep(0.02)
