"""Tables of results on the built site: each shows its JSON, and filters by column, result and text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TABLES = {
    "conformance.html": ["conformance.json"],
    "parity.html": ["parity.json", "own-loops.json"],
    "portability.html": ["portability.json"],
}


@pytest.mark.parametrize("page", TABLES)
def test_each_table_shows_the_results_of_its_json(browser: Any, site: Path, page: str) -> None:
    opened = browser.new_page()
    opened.goto(f"file://{site / page}")
    tables = opened.locator(".results")
    assert tables.count() == len(TABLES[page])
    for number, file in enumerate(TABLES[page]):
        data = json.loads((DOCS / file).read_text())
        assert (site / file).read_text() == (DOCS / file).read_text()
        shown = tables.nth(number).locator("tbody tr:not(.results-group)")
        rows = shown.evaluate_all(
            "rows => rows.map(row => [row.querySelector('th').innerText.trim(), "
            "[...row.querySelectorAll('td')].map(cell => cell.innerText.trim())])"
        )
        marks = [verdict["mark"] for verdict in data["verdicts"]]
        assert rows == [
            [row["name"], ["" if cell is None else marks[cell[0]] for cell in row["cells"]]]
            for row in data["rows"]
        ]
    opened.close()


def test_a_table_filters_and_says_why(browser: Any, site: Path) -> None:
    data = json.loads((DOCS / "parity.json").read_text())
    column = data["columns"].index("fsdp")
    refused = [
        (row["name"], data["texts"][row["cells"][column][1]])
        for row in data["rows"]
        if row["cells"][column][0] == 1
    ]
    assert data["verdicts"][1]["name"] == "refused"
    assert len(refused) > 2
    opened = browser.new_page()
    opened.goto(f"file://{site / 'parity.html'}")
    table = opened.locator(".results").first
    rows, count = table.locator("tbody tr:not(.results-group)"), table.locator("output")
    assert count.inner_text() == f"{len(data['rows'])} of {len(data['rows'])} rows"
    table.locator("select").nth(0).select_option(label="fsdp")
    table.locator("select").nth(1).select_option("refused")
    assert [
        (row.locator("th").inner_text(), row.locator("td").nth(1).inner_text()) for row in rows.all()
    ] == refused
    assert count.inner_text() == f"{len(refused)} of {len(data['rows'])} rows"
    table.locator("input").fill(refused[1][1][:40].upper())
    assert refused[1][0] in [row.locator("th").inner_text() for row in rows.all()]
    assert rows.count() < len(refused)
    rows.first.locator(".results-cell").click()
    assert table.locator(".results-detail").inner_text().startswith("fsdp, ")
    table.locator("input").fill("no row has this text")
    assert rows.count() == 0
    opened.close()


def test_without_javascript_the_summary_remains(browser: Any, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    for page, files in TABLES.items():
        opened.goto(f"file://{site / page}")
        for file in files:
            assert opened.locator(f'main a[href="{file}"]').is_visible()
        assert opened.locator("main table").first.is_visible()
        assert not opened.locator(".results-table").count()
    context.close()
