"""A short run of the fuzzer; `make fuzz` runs it longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize("first_seed", [0])
def test_no_traceback_no_wait_no_memory_nothing_written(first_seed: int) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", "--seconds", "15", "--seed", str(first_seed)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = int(done.stdout.splitlines()[-1].split()[0])
    assert cases > 20
