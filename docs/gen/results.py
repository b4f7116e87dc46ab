"""Tables of results: JSON beside a page, which docs/assets/results.js shows as a table to filter.

A page has a short summary that is read anywhere, and `Table.placeholder` where the site shows all of it. mkdocs.yml
names this file as a hook, which puts the JSON into the built page: a page that is opened as a file can't fetch it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[1]
NOT_RUN = "not run"
PLACEHOLDER = re.compile(r'<div class="results" data-results="([\w.-]+)"></div>')


class Cell(NamedTuple):
    """One result.

    Attributes:
        verdict: a key of the table's verdicts.
        text: why, or what was found; may be empty.
    """

    verdict: str
    text: str = ""


@dataclass(frozen=True)
class Row:
    """What was tried, and the results by column."""

    name: str
    group: str
    cells: Mapping[str, Cell]
    about: str = ""


@dataclass(frozen=True)
class Table:
    """All results of a page or section."""

    file: str
    """Name of the JSON in docs/."""
    row: str
    """What a row is, such as "check"."""
    column: str
    """What a column is, such as "strategy"."""
    verdicts: Mapping[str, str]
    """Verdict → mark, in the order of the summary."""
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def counted(self, column: str) -> Counter[str]:
        """Return the number of a column's cells by verdict, `NOT_RUN` included."""
        return Counter(row.cells[column].verdict if column in row.cells else NOT_RUN for row in self.rows)

    def summary(self, more: Mapping[str, str] | None = None, title: str = "") -> list[str]:
        """Return a table in Markdown that counts each column's results.

        Args:
            more: column → text of a last column of the summary.
            title: of that last column.
        """
        by_column = {column: self.counted(column) for column in self.columns}
        shown = [verdict for verdict in self.verdicts if any(each[verdict] for each in by_column.values())]
        heads = [f"{self.verdicts[verdict]} {verdict}" for verdict in shown]
        if any(each[NOT_RUN] for each in by_column.values()):
            shown, heads = [*shown, NOT_RUN], [*heads, NOT_RUN]
        last = [title] if more else []
        lines = [f"| {' | '.join([self.column, *heads, *last])} |"]
        lines.append("| --- |" + " --: |" * len(heads) + (" --- |" if more else ""))
        for column, counts in by_column.items():
            numbers = [str(counts[verdict]) if counts[verdict] else "" for verdict in shown]
            lines.append(f"| {' | '.join([column, *numbers, *([more.get(column, '')] if more else [])])} |")
        return [*lines, ""]

    def placeholder(self) -> list[str]:
        """Return where the site shows all results, and what leads a reader elsewhere to them."""
        return [
            f"All results are in [{self.file}]({self.file}). The site shows them here, and filters them by",
            f"{self.column}, result and text:",
            "",
            f'<div class="results" data-results="{self.file}"></div>',
            "",
        ]

    def content(self) -> str:
        """Return the JSON: a line per row, and each text once."""
        texts = list(
            dict.fromkeys(cell.text for row in self.rows for cell in row.cells.values() if cell.text)
        )
        index = {text: number for number, text in enumerate(texts)}
        names = list(self.verdicts)

        def cell(row: Row, column: str) -> list[int] | None:
            found = row.cells.get(column)
            if found is None:
                return None
            return [names.index(found.verdict), *([index[found.text]] if found.text else [])]

        rows = [
            {
                "name": row.name,
                "group": row.group,
                "about": row.about,
                "cells": [cell(row, column) for column in self.columns],
            }
            for row in self.rows
        ]
        fields = {
            "row": _line(self.row),
            "column": _line(self.column),
            "verdicts": _line([{"name": name, "mark": mark} for name, mark in self.verdicts.items()]),
            "columns": _line(self.columns),
            "texts": _lines(texts),
            "rows": _lines(rows),
        }
        return "{\n" + ",\n".join(f'"{name}": {text}' for name, text in fields.items()) + "\n}\n"

    def is_current(self) -> bool:
        """Return whether the file in docs/ has this content."""
        path = DOCS / self.file
        return path.exists() and path.read_text(encoding="utf-8") == self.content()


def write(page: str, text: str, tables: Iterable[Table]) -> None:
    """Write a page of docs/, and its tables beside it."""
    (DOCS / page).write_text(text, encoding="utf-8")
    for table in tables:
        (DOCS / table.file).write_text(table.content(), encoding="utf-8")


def on_post_page(output: str, **_: Any) -> str:
    """Put the tables into a built page of the site; mkdocs calls this."""

    def embedded(found: re.Match[str]) -> str:
        content = (DOCS / found[1]).read_text(encoding="utf-8")
        # Within a script, "</" would end it.
        script = content.replace("</", "<\\/")
        return f'<div class="results"><script type="application/json">{script}</script></div>'

    return PLACEHOLDER.sub(embedded, output)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lines(values: Iterable[Any]) -> str:
    return "[\n" + ",\n".join(map(_line, values)) + "\n]"
