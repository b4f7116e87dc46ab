"""A process that C++ code aborts leaves what it knows first."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path


def test_a_thread_that_aborts_lets_python_run_first(tmp_path: Path) -> None:
    left = tmp_path / "left"
    code = (
        "import ctypes, threading, time\n"
        "from stratagem_launch.hangs.abort import call_on_abort\n"
        f"call_on_abort(lambda: open({str(left)!r}, 'w').write('all that is known'))\n"
        "threading.Thread(target=ctypes.CDLL(None).abort).start()\n"
        "time.sleep(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGABRT
    assert left.read_text() == "all that is known"
