"""Print docs/guides/trainer-arguments.md: `make hooks` runs this. The sources are `Trainer` and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, getdoc, signature

from stratagem_trainer import Trainer
from stratagem_trainer.absent import ABSENT
from stratagem_trainer.arguments import REPLACED

INTRODUCTION = """# Arguments of Trainer

Set an argument in Python, or on the command line:

```py
stratagem.Trainer(max_epochs=10, accumulate_grad_batches=4)
```

```sh
stratagem fit examples/digits.py:Digits --max-epochs 10 --set trainer.accumulate_grad_batches=4
```

Arguments are also keys of the section `trainer` in a [configuration](config.md). `accelerator`, `devices`,
`num_nodes`, `strategy`, `precision`, `plugins`, `seed` and `run_dir` have their own flags and top-level keys. An
argument that doesn't exist is refused with the closest match, or with its replacement.

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
    meanings = _arguments(getdoc(Trainer) or "")
    rows = "".join(
        f"| `{name}` | `{each.default!r}` | {meanings[name]} |\n" for name, each in parameters.items()
    )
    return (
        INTRODUCTION
        + rows
        + "\n## Refused arguments and their replacements\n\n"
        + "| argument | instead |\n| --- | --- |\n"
        + _rows(REPLACED)
        + "\n## Attributes that a trainer doesn't have\n\n"
        + "| attribute | instead |\n| --- | --- |\n"
        + _rows(ABSENT)
    )


def _arguments(docstring: str) -> dict[str, str]:
    """Return name → description, from the section Args."""
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
