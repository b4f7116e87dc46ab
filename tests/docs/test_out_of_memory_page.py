"""The page about memory has the figures that its command prints."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_its_table_is_what_the_command_prints() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "docs/gen/memory.py"], capture_output=True, text=True, check=True
    ).stdout
    assert printed.count("\n") == 8
    assert printed in (ROOT / "docs/guides/out-of-memory.md").read_text()
