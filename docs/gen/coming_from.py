"""Write docs/coming-from-*.md from docs/gen/coming_from.yaml.

python docs/gen/coming_from.py               writes the pages: `make coming-from`
python docs/gen/coming_from.py fabric        prints one
"""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).parent
DATA = HERE / "coming_from.yaml"
NAME = re.compile(r"(?P<owner>\w+)(?:\.(?P<member>\w+))?(?:\((?P<argument>\w+)\))?")
"""A name there or here: `Class`, `Class.member`, `Class(argument)`, `Class.method(argument)`."""

ARGUMENT = re.compile(r"(?<=\w)\)$")
LINK = re.compile(r"\[([^]]*)\]\(([^)#]*)[^)]*\)")
OTHERS = HERE.parents[1] / "plugins/lightning/src/stratagem_lightning/migration/others.json"


@dataclass(frozen=True)
class Row:
    """A line of a table: names there, names here (none where it is absent), and why."""

    theirs: list[str]
    ours: list[str]
    why: str

    @property
    def kind(self) -> str:
        """Whether it is the "same", "renamed" or "absent": the same where all that differs is the class."""
        if not self.ours:
            return "absent"
        theirs, ours = ([rest(name) for name in names] for names in (self.theirs, self.ours))
        return "same" if theirs == ours else "renamed"


def rest(name: str) -> str:
    """Return a name without its class, or "" for the class itself."""
    return name.removeprefix(NAME.fullmatch(name)["owner"]) if NAME.fullmatch(name) else name


def rows(source: str) -> list[Row]:
    """Return the table of a section of the data, as "fabric"."""
    return [Row(names(theirs), names(ours), why) for theirs, ours, why in sections()[source]["rows"]]


def sections() -> dict:
    """Return the data, by source."""
    return yaml.safe_load(DATA.read_text(encoding="utf-8"))


def names(given: str | list[str] | None) -> list[str]:
    """Return one, several or no names as a list."""
    return [] if given is None else [given] if isinstance(given, str) else list(given)


def page(source: str) -> str:
    """Return a page."""
    section = sections()[source]
    return page_of(section["title"], section["text"], rows(source))


def page_of(title: str, text: str, table: Iterable[Row]) -> str:
    """Return a page of any table, such as one of a plugin."""
    lines = [
        f"# {title}",
        "",
        "<!-- Written by `make coming-from`: edit its data, docs/gen/coming_from.yaml. -->",
        "",
    ]
    lines += [text.rstrip(), "", "## Name by name", ""]
    lines += ["| there | here | | notes |", "| --- | --- | --- | --- |"]
    lines += [f"| {code(row.theirs)} | {code(row.ours)} | {row.kind} | {row.why} |" for row in table]
    return "\n".join(lines) + "\n"


def code(listed: list[str]) -> str:
    """Return names as code, an argument as `Class(argument=…)`."""
    return ", ".join(f"`{ARGUMENT.sub('=…)', name)}`" for name in listed)


def others() -> str:
    """Return what `stratagem migrate` says of programs of accelerate and transformers, as JSON."""
    said = {
        package: {name: _said(row) for row in rows(source) for name in row.theirs}
        for source, package in (("accelerate", "accelerate"), ("hf-trainer", "transformers"))
    }
    return json.dumps(said, indent=1, ensure_ascii=False) + "\n"


def _said(row: Row) -> str:
    why = LINK.sub(r"\1 (docs/\2)", row.why)
    if not row.ours:
        return f"not here: {why}"
    here = ", ".join(ARGUMENT.sub("=…)", name) for name in row.ours)
    return f"here {here}" + (f"; {why}" if why else "")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(page(sys.argv[1]), end="")
    else:
        for each in sections():
            (HERE.parent / f"coming-from-{each}.md").write_text(page(each), encoding="utf-8")
        OTHERS.write_text(others(), encoding="utf-8")
