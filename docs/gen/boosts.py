"""Weighs the pages for the site's search: guides before tables of results and lists of names. mkdocs.yml names it."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

BOOSTS = (
    ("guides/how-do-i.md", 4.0),
    ("guides/out-of-memory.md", 4.0),
    ("places/slurm.md", 4.0),
    ("strategies/index.md", 3.0),
    ("writing-a-plugin.md", 2.0),
    ("guides/writing-an-axis.md", 0.5),
    ("guides/*.md", 1.5),
    ("conformance.md", 0.05),
    ("parity.md", 0.05),
    ("portability.md", 0.05),
    ("sdk.md", 0.05),
    ("reference/*.md", 0.1),
    ("hooks.md", 0.1),
    ("walks.md", 0.1),
    ("gpu.md", 0.1),
    ("performance.md", 0.2),
)
"""Pattern of a page, and the factor of its score; the first that matches counts, and without one it is 1."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set what mkdocs-material's search reads, before the page is rendered."""
    path = page.file.src_uri.removeprefix("docs/")
    for pattern, boost in BOOSTS:
        if fnmatch(path, pattern):
            page.meta.setdefault("search", {})["boost"] = boost
            break
    return markdown
