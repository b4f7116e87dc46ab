"""A process that C++ code aborts leaves what it knows first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

from stratagem_launch.restart_states import LAUNCH_VARIABLE


def test_a_thread_that_aborts_lets_python_run_first(tmp_path: Path) -> None:
    left = tmp_path / "left"
    code = (
        "import ctypes, threading, time\n"
        "from stratagem_launch.hangs.abort import call_on_abort\n"
        f"call_on_abort(lambda: open({str(left)!r}, 'w').write('all that is known'))\n"
        "threading.Thread(target=ctypes.CDLL(None).abort).start()\n"
        "time.sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=200)
    assert done.returncode == -signal.SIGABRT
    assert left.read_text() == "all that is known"


RANK = """
import ctypes, sys, threading, time
from stratagem_launch.hangs import heartbeat
heartbeat.recorded_collectives = lambda: "[]"  # without an import of torch
with heartbeat.Heartbeat(60.0, int(sys.argv[1]), 2, sys.argv[2]):
    print("beats", flush=True)
    sys.stdin.readline()
    if sys.argv[1] == "0":
        threading.Thread(target=ctypes.CDLL(None).abort).start()
    time.sleep(600)
"""


def test_a_rank_that_is_aborted_ends_once_the_others_have_left_what_they_called(tmp_path: Path) -> None:
    """The launcher ends them as soon as it has ended."""
    environ = {**os.environ, LAUNCH_VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)], stdin=PIPE, stdout=PIPE, env=environ, text=True
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "beats\n"
        assert ranks[0].stdin is not None
        ranks[0].stdin.write("\n")
        ranks[0].stdin.flush()
        assert ranks[0].wait(200) == -signal.SIGABRT
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert {path.name.split(".")[1] for path in tmp_path.glob("collectives.*")} == {"0", "1"}
