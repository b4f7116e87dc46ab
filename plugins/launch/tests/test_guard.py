"""What is known of a process: that it runs, stands still, or has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from stratagem_launch.guard import can_answer, is_alive, is_stopped


def test_a_process_that_runs_stands_still_and_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def states() -> tuple[bool, bool, bool]:
        return is_alive(process.pid), is_stopped(process.pid), can_answer(process.pid)

    try:
        assert states() == (True, False, True)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert states() == (True, True, False)
        process.kill()
        deadline = time.monotonic() + 120
        while is_stopped(process.pid) or can_answer(process.pid):  # a zombie, until it is waited for
            assert time.monotonic() < deadline
        assert states() == (True, False, False)
    finally:
        process.kill()
        process.wait()
    assert states() == (False, False, False)
