"""Write docs/portability.md from the JSON that `python -m tests.portability.run read --json` keeps.

python docs/gen/portability.py   prints the page
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
DATA = HERE / "portability.json"

HEAD = """# Portability of checkpoints

Save a checkpoint under one strategy, and resume under another:

```sh
stratagem fit examples/digits.py:Digits --strategy ddp --accelerator cpu --devices 2 --max-epochs 1 --run-dir runs/a
stratagem fit examples/digits.py:Digits --strategy single --max-epochs 2 --ckpt-path runs/a/checkpoints/last
```

`make portability` writes the table below. Under each strategy and number of devices (×1, ×2, ×4), a model is
trained for four optimizer steps and saved. Each of these checkpoints is then loaded under each strategy, on CPU.
A cell counts the pairs of numbers of devices that were run. It shows ✓ if in all of them

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
    data = json.loads(DATA.read_text(encoding="utf-8"))
    cells = data["cells"]
    labels = list(dict.fromkeys(map(label, cells)))
    lines = [HEAD, f"| loaded under ↓, written under → | {' | '.join(map(short, labels))} |"]
    lines.append("| --- |" + " :-: |" * len(labels))
    for reader in labels:
        lines.append(f"| **{reader}** | {' | '.join(cell(cells, writer, reader) for writer in labels)} |")
    numbers = [value for of_reader in cells.values() for value in of_reader.values()]
    apart = [value for value in numbers if not isinstance(value, str)]
    wrong = len(numbers) - len(apart)
    lines += ["", f"{len(numbers):,} pairs were run, and {f'all but {wrong}' if wrong else 'all'} resume. "]
    lines[-1] += (
        f"The largest difference of a loss from plain PyTorch's is {max(apart):.0e}. Run with {tried(data)}."
    )
    return "\n".join([*lines, *reasons(cells)]).rstrip() + "\n"


def label(column: str) -> str:
    """Return the strategy of a column."""
    return column if "2×2" in column else column.partition(" ×")[0]


def short(name: str) -> str:
    """Return a short name of a strategy, so that the table fits."""
    return name.replace("deepspeed_stage_", "deepspeed ").replace("model_parallel", "model parallel")


def cell(cells: dict, writer: str, reader: str) -> str:
    """Return the result of the pairs of two strategies."""
    came = [
        value
        for column, of_reader in cells.items()
        if label(column) == reader
        for written, value in of_reader.items()
        if label(written) == writer
    ]
    wrong = sum(isinstance(value, str) for value in came)
    if not came:
        return ""
    return f"✗ {wrong} of {len(came)}" if wrong else f"✓ {len(came)}"


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
    print(page(), end="")
