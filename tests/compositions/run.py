"""Hold compositions of axes against one process, and write what they came to: `make compositions`.

python -m tests.compositions.run [AXES …] --json FILE    as shard+tensor; without AXES, all pairs and triples
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from stratagem_testing.workers import shared_workers

from tests.compositions.check import AXES, CHECKS, results


def main() -> None:
    parser = argparse.ArgumentParser(description="Compositions of axes against one process.")
    parser.add_argument("compositions", nargs="*")
    parser.add_argument("--json", type=Path, help="put the results into this file, beside others")
    parser.add_argument("--most", type=int, default=3, help="axes in a composition, at most")
    chosen = parser.parse_args()
    every = [axes for count in range(2, chosen.most + 1) for axes in combinations(AXES, count)]
    asked = [tuple(text.split("+")) for text in chosen.compositions] or every
    wrong = 0
    for axes in asked:
        began, cells = time.monotonic(), {}
        for check, refusal, difference in results(axes):
            is_wrong = difference is not None and not difference <= check.tolerance
            wrong += is_wrong
            cells[check.name] = {"refused": refusal} if difference is None else {"difference": difference}
            shown = refusal or f"{difference:.1e}" + f" > {check.tolerance:.0e}" * is_wrong
            print(f"  {'!' * is_wrong}{'+'.join(axes)} {check.name}: {shown}", flush=True)
        print(f"== {'+'.join(axes)}: {time.monotonic() - began:.0f} s", flush=True)
        shared_workers().close()
        if chosen.json is not None:
            keep(chosen.json, axes, cells)
    sys.exit(1 if wrong else 0)


def keep(path: Path, axes: tuple[str, ...], cells: dict[str, Any]) -> None:
    """Put the results of one composition into a file."""
    table = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    table["checks"] = [
        {"name": check.name, "what": check.what, "tolerance": check.tolerance} for check in CHECKS
    ]
    table["torch"] = torch.__version__.partition("+")[0]
    table["cells"]["+".join(axes)] = cells
    table["cells"] = dict(sorted(table["cells"].items(), key=lambda each: (each[0].count("+"), each[0])))
    path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
