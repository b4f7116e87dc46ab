"""Records of the programs, each made once per session of a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("programs.py")
Recorded = Callable[..., Path]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Run the program in a process of its own, or two, and return the folder of its record."""
    made: dict[tuple[str, ...], Path] = {}

    def run(form: str, fault: str = "none", *options: str) -> Path:
        key = (form, fault, *options)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("record") / "run"
            command = [sys.executable]
            if form in ("ddp", "fsdp"):
                command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            command += ["-m", "stratagem_diff", "record", "--out", str(made[key]), *options]
            command += [str(PROGRAM), form, fault]
            done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stderr[-3000:]
        return made[key]

    return run
