"""Print docs/guides/trainer-arguments.md: `make hooks` runs this. The sources are `Trainer` and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, getdoc, signature

from stratagem_trainer import Trainer
from stratagem_trainer.absent import ABSENT
from stratagem_trainer.arguments import REPLACED

INTRODUCTION = """# Arguments of Trainer

Each is `--set trainer.NAME=VALUE` on the command line, or a key of the section `trainer` in a configuration; what the
run is made of (`accelerator`, `devices`, `num_nodes`, `strategy`, `precision`, `plugins`, `seed`, `run_dir`) is a
flag of its own. An argument that isn't here is refused with the nearest one, or with what to write instead.

| argument | default | meaning |
| --- | --- | --- |
"""


def page() -> str:
    """Return the page."""
    parameters = {
        name: each
        for name, each in signature(Trainer).parameters.items()
        if each.kind is not Parameter.VAR_KEYWORD
    }
    told = _arguments(getdoc(Trainer) or "")
    rows = "".join(f"| `{name}` | `{each.default!r}` | {told[name]} |\n" for name, each in parameters.items())
    return (
        INTRODUCTION
        + rows
        + "\n## Refused, with what does the same\n\n"
        + "| argument | instead |\n| --- | --- |\n"
        + _rows(REPLACED)
        + "\n## Attributes of a trainer that aren't here\n\n"
        + "| attribute | instead |\n| --- | --- |\n"
        + _rows(ABSENT)
    )


def _arguments(docstring: str) -> dict[str, str]:
    """Name → description, of the section Args."""
    section = docstring.split("Args:\n", 1)[1].split("\n\n", 1)[0]
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            name, _, text = line.strip().partition(": ")
            found[name] = text
        else:
            found[name] += f" {line.strip()}"
    return {name: text.replace("|", "\\|") for name, text in found.items()}


def _rows(table: Mapping[str, str]) -> str:
    return "".join(f"| `{name}` | {instead} |\n" for name, instead in sorted(table.items()))


if __name__ == "__main__":
    print(page(), end="")
