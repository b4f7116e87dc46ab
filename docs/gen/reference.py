"""Gives each class of the reference a page of its own: mkdocs.yml names this file as a hook.

docs/reference/python.md and protocols.md list classes and functions as mkdocstrings' `::: module.NAME`, under
headings. In the site, an entry is a link with the first line of the docstring, and has the page NAME.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import griffe
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parents[1]
LISTS = {"reference/python.md": "Python", "reference/protocols.md": "Protocols"}
"""Page with entries → what the navigation calls it."""
_ENTRY = re.compile(r"^::: ([\w.]+)\n((?: {4,}.*\n)*)", re.MULTILINE)
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


class Entry(NamedTuple):
    """A class or function, and the page that it gets."""

    path: str
    options: str
    """mkdocstrings', as the list has them: indented lines, or nothing."""
    uri: str

    @property
    def name(self) -> str:
        """Without its module."""
        return self.path.rpartition(".")[2]

    def markdown(self) -> str:
        """Return the text of its page."""
        options = self.options or "    options:\n"
        return f"---\ntitle: {self.name}\n---\n\n::: {self.path}\n{options}      heading_level: 1\n"


def entries(page: str, text: str) -> list[Entry]:
    """Return the entries of a list that get pages; one without a heading of its own stays where it is."""
    folder = page.removesuffix(".md")
    found = [(path, options) for path, options in _ENTRY.findall(text) if "show_root_heading" not in options]
    return [Entry(path, options, f"{folder}/{path.rpartition('.')[2]}.md") for path, options in found]


def on_config(config: Any) -> Any:
    """Put the pages into the navigation, below the headings of their lists."""
    config.nav = [_with_pages(item) for item in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for page in LISTS:
        for entry in entries(page, (DOCS / page).read_text()):
            files.append(File.generated(config, entry.uri, content=entry.markdown()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Replace a list's entries by links."""
    uri = page.file.src_uri
    if uri not in LISTS:
        return markdown
    paths = config.plugins["mkdocstrings"].config.handlers["python"]["paths"]
    folder = Path(config.config_file_path).parent
    search = [str(folder / path) for path in paths]
    for entry in entries(uri, markdown):
        link = f"- [`{entry.name}`]({entry.uri.removeprefix('reference/')}): {_summary(entry.path, search)}\n"
        markdown = markdown.replace(f"::: {entry.path}\n{entry.options}", link)
    return markdown


def _summary(path: str, search: list[str]) -> str:
    """Return the first line of a docstring, read without importing its module."""
    package, *rest = path.split(".")
    found = griffe.load(package, search_paths=search)[".".join(rest)]
    return found.docstring.value.splitlines()[0]


def _with_pages(item: Any) -> Any:
    if isinstance(item, str) and item in LISTS:
        return {LISTS[item]: [item, *_sections(item)]}
    if isinstance(item, dict):
        return {
            title: value if isinstance(value, str) else [_with_pages(each) for each in value]
            for title, value in item.items()
        }
    return item


def _sections(page: str) -> list[dict[str, list[str]]]:
    """Return navigation for a list: heading → pages."""
    _, *parts = _HEADING.split((DOCS / page).read_text())
    sections = {
        title: [each.uri for each in entries(page, text)] for title, text in zip(parts[::2], parts[1::2])
    }
    return [{title: pages} for title, pages in sections.items() if pages]
