"""Every hop that docs/walks.md draws occurs in the program of today."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/walks.md").read_text()


def missing(block: str, occurring: set[tuple[tuple[str, str], ...]]) -> list[str]:
    """Lines of a block whose hops don't occur: within the line, or from a function of the line around it."""
    found, above = [], {}
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        file, _, functions = line.partition("◄")[0].strip().partition("  ")
        calls = [(file, name.strip()) for name in functions.split("→")]
        within = all(hop in occurring for hop in pairwise(calls))
        outer = above.get(depth - 1)
        if not within or (outer and not any((caller, calls[0]) in occurring for caller in outer)):
            found.append(line.strip())
        above[depth] = calls
    return found


@pytest.mark.parametrize(
    "walks",
    [
        ("flag-to-setup", "batch-to-row", "tensor-to-file-and-back", "sigterm-to-checkpoint"),
        ("entry-point-to-hook",),
    ],
)
def test_each_hop_still_occurs(walks):
    from tests.walks.walks import WALKS

    command = [sys.executable, "-m", "tests.walks", "--traced", *walks]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for traced in json.loads(ended.stdout.splitlines()[-1]):
        title = next(walk.what.partition(": ")[0] for walk in WALKS if walk.name == traced["name"])
        block = re.search(rf"## {re.escape(title)}\n.*?```text\n(.*?)```", PAGE, re.DOTALL).group(1)
        occurring = {(tuple(caller), tuple(callee)) for caller, callee in traced["edges"]}
        gone = missing(block, occurring)
        assert not gone, f"run `make walks`: on {traced['name']} these hops are gone: {gone}"


def test_a_hop_that_is_gone_is_named():
    block = "a.py  run → work   ◄ begins\n  b.py  save\n  c.py  load\n"
    occurring = {(("a.py", "run"), ("a.py", "work")), (("a.py", "run"), ("b.py", "save"))}
    assert missing(block, occurring) == ["c.py  load"]
    assert missing(block, set()) == ["a.py  run → work   ◄ begins", "b.py  save", "c.py  load"]
