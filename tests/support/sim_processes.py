"""Code that runs on the simulated device, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run(code: str, prelude: str = "", **variables: str) -> str:
    """Run code in a process of its own, for the device is configured once in each; return what it printed.

    Args:
        code: may be indented.
        prelude: what comes before it, after torch was imported and the device loaded.
        variables: of the environment.
    """
    begin = "import torch\nfrom stratagem_sim import load, count_synchronizations\nload()\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + prelude + textwrap.dedent(code)],
        env={**os.environ, "STRATAGEM_SIM_DELAY": "late", "STRATAGEM_SIM_LATE_MS": "5000", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
