"""Write a checkpoint under each column, and read each of them under each.

python -m tests.portability.run write FOLDER [COLUMN …]              with what is installed here
python -m tests.portability.run read FOLDER [COLUMN …] --json FILE   all that FOLDER has
python -m tests.portability.run read FOLDER … --json FILE --new      the pairs alone that FILE hasn't yet

Columns that need Horovod or torch_xla run under an interpreter of their own, on the same folder and file.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.portability.cell import Outcome, read, write
from tests.portability.columns import Column, columns_here


def main() -> None:
    parser = argparse.ArgumentParser(description="Checkpoints of each strategy under each other.")
    parser.add_argument("what", choices=["write", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("columns", nargs="*")
    parser.add_argument(
        "--json", type=Path, help="put the results into this file, beside what it has of others"
    )
    parser.add_argument("--new", action="store_true", help="read only what this file doesn't tell yet")
    chosen = parser.parse_intermixed_args()
    here = columns_here()
    columns = [here[name] for name in chosen.columns or here]
    wrong = 0
    for column in columns:
        began = time.monotonic()
        wrong += (
            written(column, chosen.folder)
            if chosen.what == "write"
            else reads(column, chosen.folder, chosen.json, chosen.new)
        )
        print(f"== {column.name}: {time.monotonic() - began:.0f} s", flush=True)
        _end_processes(column)
    sys.exit(1 if wrong else 0)


def written(column: Column, folder: Path) -> int:
    """Write one checkpoint; return whether something is wrong with it."""
    folder.mkdir(parents=True, exist_ok=True)
    fault = write(column, str(folder / column.name))
    if fault:
        print(f"! {column.name} can't write: {fault}", flush=True)
    return bool(fault)


def reads(column: Column, folder: Path, into: Path | None, only_new: bool = False) -> int:
    """Read all checkpoints in a folder, or those not tried yet; return how many can't be gone on from."""
    known = table_of(into)["cells"].get(column.name, {}) if only_new else {}
    paths = {path.name: str(path) for path in sorted(folder.iterdir()) if path.name not in known}
    if not paths:
        return 0
    with tempfile.TemporaryDirectory(prefix="stratagem-portability-") as again:
        outcomes = list(read(column, paths, again))
    for outcome in outcomes:
        if outcome.wrong:
            print(f"! {outcome.writer} → {outcome.reader}: {outcome.wrong[:300]}", flush=True)
    if into is not None:
        keep(into, outcomes)
    return sum(bool(outcome.wrong) for outcome in outcomes)


def table_of(path: Path | None) -> dict[str, Any]:
    """Return the results in a file, or none."""
    if path is None or not path.exists():
        return {"torch": {}, "cells": {}}
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table


def keep(path: Path, outcomes: list[Outcome]) -> None:
    """Put results in the place of those before."""
    table = table_of(path)
    table["python"] = platform.python_version()
    for outcome in outcomes:
        table["torch"][outcome.reader] = torch.__version__.partition("+")[0]
        of_reader = table["cells"].setdefault(outcome.reader, {})
        of_reader[outcome.writer] = outcome.wrong or float(f"{outcome.apart:.1e}")
    path.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _end_processes(column: Column) -> None:
    from stratagem_testing.workers import shared_workers

    if column.own_processes:
        shared_workers(f"{column.strategy} on {column.devices}").close()


if __name__ == "__main__":
    main()
