"""Write docs/plugins.md: `make plugins`. The source is each distribution's metadata and its component records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import importlib_metadata
from packaging.requirements import Requirement
from stratagem_cli.commands import plugin_groups

from stratagem.sdk.catalogue import API_VERSION, Catalogue, load_catalogue

ROOT = Path(__file__).parents[2]
INTRODUCTION = f"""\
# Plugins

<!-- Written by `make plugins` from the distributions' metadata and component records: edit those. -->

List the plugins on your machine, and check one of them:

```sh
stratagem plugins
stratagem plugins check stratagem-ddp
```

The table lists the plugins of this project. `stratagem strategies` also lists presets and aliases. The core
has plugin API {API_VERSION}. How plugins are found and locked: [plugins you can trust](guides/plugins.md).
How to write one: [writing a plugin](writing-a-plugin.md).

| distribution | offers | needs, apart from the core | accelerators | plugin API | Python |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """Return docs/plugins.md."""
    catalogue = load_catalogue()
    commands = {origin.distribution: group.names() for origin, group, _ in plugin_groups()}
    rows = [_row(name, catalogue, commands.get(name, [])) for name in sorted(_names())]
    return INTRODUCTION + "\n".join(rows) + "\n"


def _names() -> Iterator[str]:
    yield "stratagem-core"
    for project in ROOT.glob("plugins/*/pyproject.toml"):
        yield f"stratagem-{project.parent.name}"


def _row(name: str, catalogue: Catalogue, commands: list[str]) -> str:
    metadata = importlib_metadata.metadata(name)
    components = [component for component in catalogue.components if component.origin.distribution == name]
    offers: dict[str, list[str]] = {}
    for component in components:
        offers.setdefault(component.kind, []).append(component.name)
    offers |= {"command": commands} if commands else {}
    accelerators = {
        accelerator
        for component in components
        if component.kind == "strategy"
        for accelerator in component.capabilities.accelerators
    }
    cells = [
        f"`{name}` {metadata['Version']}",
        "; ".join(f"{kind} {', '.join(f'`{each}`' for each in names)}" for kind, names in offers.items()),
        ", ".join(_needs(name)),
        ", ".join(sorted(accelerators)).replace("*", "any"),
        ", ".join(sorted({str(component.api_version) for component in components})),
        metadata["Requires-Python"],
    ]
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def _needs(name: str) -> Iterator[str]:
    """Yield its requirements, including those of its extra `engine`."""
    for text in importlib_metadata.requires(name) or ():
        requirement = Requirement(text)
        extra = str(requirement.marker or "")
        if requirement.name == "stratagem-core" or (extra and "engine" not in extra):
            continue
        versions = ",".join(sorted(map(str, requirement.specifier), reverse=True))
        yield f"{requirement.name} {versions}{' (extra `engine`)' if extra else ''}"


if __name__ == "__main__":
    print(page(), end="")
