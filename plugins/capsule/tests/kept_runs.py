"""Commands that tests of replays run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NET = f"{Path(__file__).with_name('kept_net.py')}:Net"
Trained = Callable[..., Path]
CHOSEN = "trainer.callbacks=[{{class_path: stratagem_capsule.Capsules, init_args: {{steps: {steps}}}}}]"


def command(*words: str, typed: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `stratagem` in a process of its own, as a user does."""
    environment = {**os.environ, **variables}
    whole = [sys.executable, "-m", "stratagem", *words]
    return subprocess.run(whole, env=environment, input=typed, capture_output=True, text=True, timeout=200)
