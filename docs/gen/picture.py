"""Draw docs/assets/run.svg: a real run of the digits in two processes, as a terminal shows it, and its accuracy.

python docs/gen/picture.py > docs/assets/run.svg      or: make picture
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = (
    "stratagem fit examples/digits.py:Digits --max-epochs 10 --strategy ddp --accelerator cpu --devices 2"
)
WIDTH, LINE, CHAR, LEFT, TOP = 800, 19, 7.25, 20, 52
PLOT = (560, 210, 130)
"""Left, width and height of the curve, which begins beside the first epoch: those lines are short."""
COLOURS = {"dim": "#7d8799", "text": "#d7dce5", "label": "#7fb4ff", "good": "#7fd6a0", "ground": "#161a22"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        printed = recorded(folder)
        rows = list(csv.DictReader((Path(folder) / "run/metrics.csv").read_text().splitlines()))
    print(picture(printed, [float(row["val_acc"]) for row in rows if row["val_acc"]]))


def recorded(folder: str) -> list[str]:
    """Run the command, and return what it prints, without what differs from machine to machine."""
    words = [*COMMAND.split(), "--run-dir", f"{folder}/run"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    words[0] = str(Path(sys.executable).with_name("stratagem"))
    done = subprocess.run(
        words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    lines = [re.sub(r"^(run folder +).*", r"\1runs/digits", line) for line in done.stdout.splitlines()]
    return [re.sub(r"^(epoch .*)  [\d.]+ s  ", r"\1  ", line) for line in lines]


def picture(printed: list[str], accuracies: list[float]) -> str:
    """Return the SVG."""
    height = TOP + LINE * (len(printed) + 2)
    lines = [text(0, f"$ {COMMAND}", "good")]
    for index, line in enumerate(printed, start=1):
        label = re.match(r"\s*(?:epoch \d+/\d+|run folder|[a-z]\w*)?(?= |$)", line)
        label = label[0] if label else ""
        lines.append(text(index, label, "label") + text(index, line[len(label) :], "text", len(label)))
    dots = [
        f'<circle cx="{x}" cy="{12 + 8}" r="6" fill="{c}"/>'
        for x, c in zip((24, 44, 64), ("#ff5f57", "#febc2e", "#28c840"))
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="12">',
            "<title>A run in two processes: the plan, ten epochs, the accuracy</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{COLOURS["ground"]}"/>',
            *dots,
            *lines,
            *curve(
                accuracies,
                TOP + LINE * (1 + next(i for i, line in enumerate(printed) if line.startswith("epoch"))),
            ),
            "</svg>",
        ]
    )


def text(line: int, words: str, colour: str, column: int = 0) -> str:
    """Return words in a line of the terminal; each character as wide as the next, whatever the font."""
    indent = len(words) - len(words.lstrip())
    words = words.strip()
    if not words:
        return ""
    x, y = LEFT + (column + indent) * CHAR, TOP + LINE * line
    return (
        f'<text x="{x:g}" y="{y}" fill="{COLOURS[colour]}" xml:space="preserve" textLength="{len(words) * CHAR:g}">'
        f"{escape(words)}</text>"
    )


def curve(values: list[float], top: int) -> list[str]:
    """Return the accuracy after each epoch as a line, with its first and its last value."""
    left, width, height = PLOT
    low = min(values)
    points = [
        (left + width * i / (len(values) - 1), top + height * (1 - (value - low) / (max(values) - low)))
        for i, value in enumerate(values)
    ]
    (x0, y0), (x1, y1) = points[0], points[-1]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    labelled = f'font-size="11" fill="{COLOURS["dim"]}"'
    return [
        f'<polyline points="{path}" fill="none" stroke="{COLOURS["good"]}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS["good"]}"/>' for x, y in points),
        f'<text x="{x0 + 10:.1f}" y="{y0 + 4:.1f}" {labelled}>{values[0]:.3f}</text>',
        f'<text x="{x1:.1f}" y="{y1 - 10:.1f}" text-anchor="end" {labelled}>{values[-1]:.3f}</text>',
        f'<text x="{left}" y="{top + height + 24}" {labelled}>val_acc, epoch 1 to {len(values)}</text>',
    ]


if __name__ == "__main__":
    main()
