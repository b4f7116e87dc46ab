"""2 only where nothing was started and nothing written; what fails in a run is 1, and names its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stratagem_cli.main import main

LIMIT_BYTES = 1 << 20
LIMITED = f"""
import resource, sys
from stratagem_cli.main import main
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, {LIMIT_BYTES}))
    sys.exit(main(sys.argv[1:]))
"""


def test_what_cannot_be_written_is_a_failure_and_named(net: Path) -> None:
    """A limit on the size of files stands for a full disk: the system refuses the write in the same place."""
    Path("limited.py").write_text(LIMITED)
    words = ["fit", "net.py:Net", "--set", "model.hidden=300000", "--max-steps", "1", "--run-dir", "out"]
    words += ["--strategy", "ddp", "--devices", "2"]
    done = subprocess.run(
        [sys.executable, "limited.py", *words],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1, done.stderr
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith(f"Error: the checkpoint {Path('out/checkpoints').absolute()}")
    assert "can't be written: rank 0 failed with OSError: [Errno 27] File too large" in last


def test_a_refusal_in_a_step_is_a_failure_of_the_run(net: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = "        loss = self._loss(batch)\n"
    refusal = "        raise __import__('stratagem.errors').errors.ConfigError('no such thing')\n"
    net.write_text(net.read_text().replace(first, first + refusal, 1))
    assert main(["fit", "net.py:Net", "--max-steps", "1"]) == 1
    assert capfd.readouterr().err.rstrip().splitlines()[-1] == "Error: no such thing"
