"""A report as a single HTML page without other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

MARKS: Mapping[str, str] = {"passed": "✓", "failed": "✗", "skipped": "–", "waived": "~"}
"""Verdict → mark in tables."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: left; vertical-align: top; }
td.mark { text-align: center; font-weight: 600; }
.passed { color: #17803d; } .failed { color: #c0271b; } .waived { color: #9a6700; } .skipped { color: #888; }
.reason { color: #666; font-size: 13px; white-space: pre-wrap; }
@media (prefers-color-scheme: dark) { body { background: #16181d; color: #ddd; } .reason { color: #aaa; } }
"""


def html_page(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with reports. The argument is what `Report.to_json` returned."""
    body = "\n".join(_section(report) for report in reports)
    names = escape(", ".join(report["name"] for report in reports))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Conformance of {names}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def grouped(report: Mapping[str, Any]) -> tuple[list[int], dict[str, dict[int, Mapping[str, Any]]]]:
    """Return the world sizes of a report, and check → world size → outcome."""
    sizes = sorted({outcome["world_size"] for outcome in report["checks"]})
    rows: dict[str, dict[int, Mapping[str, Any]]] = {}
    for outcome in report["checks"]:
        rows.setdefault(outcome["check"], {})[outcome["world_size"]] = outcome
    return sizes, rows


def _section(report: Mapping[str, Any]) -> str:
    sizes, rows = grouped(report)
    head = "".join(f"<th>{size}</th>" for size in sizes)
    lines = "\n".join(_row(check, by_size, sizes) for check, by_size in rows.items())
    counts = " · ".join(f"{report[verdict]} {verdict}" for verdict in MARKS)
    origin = f"{report['distribution']} {report['version']} · torch {report['torch']}"
    return (
        f"<h1>{escape(report['kind'])} {escape(report['name'])}</h1>\n<p>{escape(origin)} · {counts}</p>\n"
        f"<table>\n<tr><th>check</th>{head}<th>claim</th></tr>\n{lines}\n</table>"
    )


def _row(check: str, by_size: Mapping[int, Mapping[str, Any]], sizes: Sequence[int]) -> str:
    cells = "".join(_cell(by_size.get(size)) for size in sizes)
    claim = escape(next(iter(by_size.values()))["claim"])
    reasons = dict.fromkeys(outcome["reason"] for outcome in by_size.values() if outcome["reason"])
    lines = "".join(f'<div class="reason">{escape(reason)}</div>' for reason in reasons)
    return f"<tr><td><code>{escape(check)}</code></td>{cells}<td>{claim}{lines}</td></tr>"


def _cell(outcome: Mapping[str, Any] | None) -> str:
    if outcome is None:
        return "<td></td>"
    verdict = outcome["verdict"]
    return f'<td class="mark {verdict}" title="{verdict}, {outcome["seconds"]:.2f} s">{MARKS[verdict]}</td>'
