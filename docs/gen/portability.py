"""Write docs/portability.md from the JSON that `python -m tests.portability.run read --json` keeps.

python docs/gen/portability.py   writes the page, and its table as JSON
"""

from __future__ import annotations

import json
from pathlib import Path

from results import Cell, Row, Table, write

HERE = Path(__file__).parent
DATA = HERE / "portability.json"
VERDICTS = {"resume": "✓", "don't resume": "✗"}

HEAD = """# Portability of checkpoints

Save a checkpoint under one strategy, and resume under another:

```sh
stratagem fit examples/digits.py:Digits --strategy ddp --accelerator cpu --devices 2 --max-epochs 1 --run-dir runs/a
stratagem fit examples/digits.py:Digits --strategy single --max-epochs 2 --ckpt-path runs/a/checkpoints/last
```

`make portability` writes this page. Under each strategy and number of devices (×1, ×2, ×4), a model is
trained for four optimizer steps and saved. Each of these checkpoints is then loaded under each strategy, on CPU.
A pair resumes if

- the checkpoint's parameters, buffers, AdamW's moments and step counts are those of plain PyTorch in one
  process, within a ten-thousandth of the largest number in each tensor;
- what was loaded, saved again by the strategy that loaded it, equals the checkpoint **to the last bit**,
  including moments and step counts;
- the **next five losses** are plain PyTorch's within 1e-5, with the schedule of learning rates, two parameter
  groups and the order of samples.

The model has shapes that no number of ranks divides, a parameter with a single number, a buffer and a layer
without bias. It is in `tests/portability`; a short version runs with all tests. More about checkpoints:
[the guide](guides/checkpoints.md).
"""


def page() -> str:
    """Return the page."""
    data, pairs = json.loads(DATA.read_text(encoding="utf-8")), table()
    cells = data["cells"]
    numbers = [value for of_reader in cells.values() for value in of_reader.values()]
    differences = [value for value in numbers if not isinstance(value, str)]
    wrong = len(numbers) - len(differences)
    lines = [
        HEAD,
        f"{len(numbers):,} pairs were run, and {f'all but {wrong}' if wrong else 'all'} resume. The largest "
        f"difference of a loss from plain PyTorch's is {max(differences):.0e}. Run with {tried(data)}.",
        "",
        "The table counts pairs by the strategy that wrote the checkpoint:",
        "",
        *summary(cells),
        "## All pairs",
        "",
        *pairs.placeholder(),
        *reasons(cells),
    ]
    return "\n".join(lines).rstrip() + "\n"


def summary(cells: dict) -> list:
    """Return how many pairs resume, by the strategy that wrote."""
    lines = ["| written under | pairs | resume | largest difference of a loss |", "| --- | --: | --: | --: |"]
    for writer in dict.fromkeys(map(label, cells)):
        values = pairs_of(cells, writer)
        numbers = [value for value in values if not isinstance(value, str)]
        largest = f"{max(numbers):.0e}" if numbers else ""
        lines.append(f"| {writer} | {len(values)} | {len(numbers)} | {largest} |")
    return [*lines, ""]


def table() -> Table:
    """Return for each strategy that loads, and each that wrote, whether the pairs resume."""
    cells = json.loads(DATA.read_text(encoding="utf-8"))["cells"]
    labels = tuple(dict.fromkeys(map(label, cells)))
    rows = []
    for reader in labels:
        found = {writer: cell(pairs_of(cells, writer, reader)) for writer in labels}
        rows.append(Row(reader, "", {writer: came for writer, came in found.items() if came is not None}))
    return Table("portability.json", "loaded under", "strategy that wrote", VERDICTS, labels, tuple(rows))


def label(column: str) -> str:
    """Return the strategy of a column."""
    return column if "2×2" in column else column.partition(" ×")[0]


def pairs_of(cells: dict, writer: str, reader: str | None = None) -> list:
    """Return the results of pairs that one strategy wrote, and one loaded, or any: a difference, or a reason."""
    return [
        value
        for column, of_reader in cells.items()
        if reader is None or label(column) == reader
        for written, value in of_reader.items()
        if label(written) == writer
    ]


def cell(values: list) -> Cell | None:
    """Return the result of the pairs of two strategies; None if none was run."""
    if not values:
        return None
    wrong = sum(isinstance(value, str) for value in values)
    if wrong:
        return Cell("don't resume", f"{wrong} of {len(values)} pairs of numbers of devices don't resume")
    largest = max(values)
    return Cell(
        "resume", f"{len(values)} pairs of numbers of devices; losses differ by at most {largest:.0e}"
    )


def reasons(cells: dict) -> list:
    """Return why pairs don't resume."""
    said: dict[str, list[str]] = {}
    for reader, of_reader in cells.items():
        for writer, value in of_reader.items():
            if isinstance(value, str):
                said.setdefault(" ".join(value.split()), []).append(f"{writer} → {reader}")
    if not said:
        return []
    lines = ["", "## Pairs that don't resume", ""]
    return lines + [f"- `{why.replace('`', chr(39))}`: {', '.join(pairs)}" for why, pairs in said.items()]


def tried(data: dict) -> str:
    """Return the versions; strategies on XLA have another torch."""
    by_version: dict[str, list[str]] = {}
    for column, version in data["torch"].items():
        by_version.setdefault(version, []).append(label(column))
    most = max(by_version, key=lambda version: len(by_version[version]))
    others = [f"torch {v} for {', '.join(dict.fromkeys(c))}" for v, c in by_version.items() if v != most]
    return ", ".join([f"torch {most} and Python {data['python']}", *others])


if __name__ == "__main__":
    write("portability.md", page(), [table()])
