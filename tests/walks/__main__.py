"""Walk five ways through the code, and print how long each is: `python -m tests.walks`.

A walk is traced while the real program runs. Printed are its calls of this project's functions, the files that these
are in, and its hops: how often a reader who follows the walk goes from one file to another. The two lines after that
say what a `Runtime` in one process has imported, and how many public names there are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.walks.trace import ROOT, Trace, drawn
from tests.walks.walks import PROGRAM, WALKS

LOADED = """
import json, sys
from stratagem import Runtime
Runtime(devices=1, accelerator="cpu").launch(lambda runtime: None, quiet=True)
print(json.dumps(sorted(sys.modules)))
"""
OPENING = """\
# Walks through the code

What happens between two points of a run, and in which file. Each line is a file with the functions that are called
in it, one after the other; what these call is indented below. ◄ marks a station of the walk. `make walks` writes this
page from traced runs, and a test fails when a hop on it no longer occurs.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="write the hops to this file, as docs/walks.md")
    parser.add_argument("--traced", metavar="NAME", nargs="+", help="walk in this process, and print JSON")
    asked = parser.parse_args()
    if asked.traced:
        print(json.dumps([traced(name) for name in asked.traced]))
        return
    walked = walk_all()
    if asked.page:
        asked.page.write_text(page(walked))
    print(f"{'walk':<26} {'calls':>6} {'files':>6} {'hops':>6}")
    for each in walked:
        print(f"{each['name']:<26} {each['calls']:>6} {each['files']:>6} {len(each['lines']) - 1:>6}")
    loaded = json.loads(_python("-c", LOADED))
    ours = [name for name in loaded if name.partition(".")[0].startswith("stratagem")]
    core = [name for name in ours if name.partition(".")[0] == "stratagem"]
    print(
        f"modules loaded by a Runtime in one process: {len(core)} of core, {len(ours)} of this project, "
        f"{len(loaded)} with torch and all others"
    )
    surface = (ROOT / "docs/gen/surface.txt").read_text().splitlines()
    names = {line.partition("(")[0].partition(":")[0].partition(" ")[0] for line in surface}
    import stratagem

    print(
        f"public names: {len(stratagem.__all__)} in stratagem; {len(names)} with their members and stratagem.sdk"
    )


def walk_all() -> list[dict[str, Any]]:
    """Trace each walk in a process that has run nothing before, and return what `traced` does."""
    # From the second process on, what plugins offer comes from discovery's cache, as it does for users.
    _python("-c", "from stratagem.installed.catalogue import load_catalogue; load_catalogue()")
    return [json.loads(_python("-m", "tests.walks", "--traced", walk.name))[0] for walk in WALKS]


def traced(name: str) -> dict[str, Any]:
    """Walk in this process, in a folder of its own."""
    walk = next(each for each in WALKS if each.name == name)
    trace = Trace(list(walk.stations))
    printed, before = sys.stdout, os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.stdout = sys.stderr
        try:
            Path("program.py").write_text(dedent(PROGRAM))
            walk.run(trace)
        finally:
            sys.stdout = printed
            os.chdir(before)
    assert not trace.missed(), f"the walk {name} never came to {trace.missed()}"
    return {
        "name": name,
        "calls": trace.calls,
        "files": len(trace.files),
        "lines": [line.text() for line in drawn(trace)],
        "edges": sorted(trace.edges),
    }


def page(walked: list[dict[str, Any]]) -> str:
    """Return docs/walks.md."""
    text = OPENING
    for walk, each in zip(WALKS, walked):
        text += f"\n## {walk.what.partition(': ')[0]}\n\n{walk.what.partition(': ')[2]}\n\n```text\n"
        text += "\n".join(each["lines"]) + "\n```\n"
    return text


def _python(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return ended.stdout.rpartition("\n")[0].rpartition("\n")[2]


if __name__ == "__main__":
    main()
