"""Whether ranks notice that it isn't a rank of theirs that they are connected to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("taken_connection.py")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to act as another user"
)
@pytest.mark.serial
@pytest.mark.timeout(120)
def test_a_connection_that_another_user_has_taken_is_an_error_before_anything_is_unpickled(
    tmp_path: Path,
) -> None:
    """gloo alone goes on with any process that has connected, and `gather_objects` then unpickles what they send."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "a secret"], capture_output=True, text=True
    )
    assert "isn't connected to rank" in done.stdout, done.stderr
    assert "doesn't know this run's secret" in done.stdout
