"""Try the whole table, or some of it.

python -m tests.parity.run                                           all but the engine's columns
python -m tests.parity.run --columns deepspeed_stage_1 …             a few columns
python -m tests.parity.run --kinds gpt2 adam --columns ddp "fsdp ×4" a few cells
python -m tests.parity.run --columns --json docs/gen/parity.json     none: only what the file says of them
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.parity.cell import VERDICTS, Outcome, try_cell
from tests.parity.columns import COLUMNS, ENGINES
from tests.parity.expected import expected_refusals, why_open
from tests.parity.kind import Kind
from tests.parity.kinds import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold strategies against plain PyTorch loops.")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), metavar="KIND")
    usual = [name for name in COLUMNS if name not in ENGINES]
    parser.add_argument("--columns", nargs="*", choices=COLUMNS, default=usual, metavar="COLUMN")
    parser.add_argument(
        "--json", type=Path, help="put the results into this file, beside what it has of others"
    )
    chosen = parser.parse_args()
    unexpected = 0
    if chosen.json:
        keep(chosen.json)
    for column in chosen.columns:
        outcomes = []
        for kind in chosen.kinds:
            outcome = try_cell(kind, column)
            outcomes.append(outcome)
            unexpected += not is_expected(outcome)
            print(sentence_of(outcome), flush=True)
            if chosen.json:
                keep(chosen.json, outcome)
        counted = Counter(outcome.verdict for outcome in outcomes)
        print(f"== {column}:", *(f"{counted[v]} {v}" for v in VERDICTS if counted[v]), flush=True)
    sys.exit(1 if unexpected else 0)


def is_expected(outcome: Outcome) -> bool:
    """Whether a cell is equal, or refused as it is listed; or listed as known to be wrong."""
    parts = expected_refusals(outcome.kind, outcome.column)
    refused = outcome.verdict == "refused" and any(part in outcome.sentence for part in parts)
    as_listed = refused if parts else outcome.verdict == "equal"
    return as_listed or bool(why_open(outcome.kind, outcome.column))


def sentence_of(outcome: Outcome) -> str:
    """Return a line about a cell."""
    mark = " " if is_expected(outcome) else "!"
    size = "" if outcome.difference is None else f" {outcome.difference:.0e}"
    what = f"{outcome.column} {outcome.kind}: {outcome.verdict}{size} ({outcome.seconds:.1f} s)"
    return f"{mark} {what} {outcome.sentence[:300]}"


def keep(path: Path, *outcomes: Outcome) -> None:
    """Put results in the place of those before; the table has the kinds and columns of now."""
    known = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    records = {(record["column"], record["kind"]): record for record in known}
    records |= {(outcome.column, outcome.kind): outcome.to_json() for outcome in outcomes}
    table = {
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        "columns": list(COLUMNS),
        "tolerances": [
            {"column": column.name, "kind": kind, "tolerance": tolerance, "reason": reason}
            for column in COLUMNS.values()
            for kind, (tolerance, reason) in column.tolerances.items()
        ],
        "kinds": [described(kind) for kind in KINDS.values()],
        "open": [
            {"column": c, "kind": k, "reason": r} for c in COLUMNS for k in KINDS if (r := why_open(k, c))
        ],
        "cells": [records[c, k] for c in COLUMNS for k in KINDS if (c, k) in records],
    }
    path.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def described(kind: Kind) -> dict[str, Any]:
    """Return what the page says of a kind."""
    fields = ("name", "title", "theme", "tolerance", "tolerance_reason", "per_share_reason", "options")
    return {field: getattr(kind, field) for field in fields}


if __name__ == "__main__":
    main()
