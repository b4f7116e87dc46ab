"""Write the stubs of `stratagem` and the index of our plugins: `make facade` runs this.

The sources are `stratagem/__init__.py` of the core, the table of names in pyproject.toml, and the component records
of the distributions in plugins/.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import importlib_metadata

from stratagem.sdk.catalogue import load_catalogue

FACADE = Path(__file__).parent
CORE = FACADE.parents[1] / "core/src/stratagem/__init__.py"
STUBS = FACADE / "src/stratagem-stubs/__init__.pyi"
INDEX = FACADE / "src/stratagem_facade/index.json"
INTRODUCTION = '''\
"""All names of `stratagem`, for type checkers and editors. Written by `make facade`: edit pyproject.toml instead."""
'''


def stubs() -> str:
    """Return the text of the stubs of `stratagem`: the core's names, and those of this distribution's table."""
    homes = core_homes()
    for entry_point in importlib_metadata.distribution("stratagem-facade").entry_points.select(
        group="stratagem.names"
    ):
        homes[entry_point.name] = entry_point.module
    lines = [f"from {home} import {name} as {name}" for name, home in homes.items()]
    public = "".join(f'    "{name}",\n' for name in sorted(homes))
    return f"{INTRODUCTION}\n{chr(10).join(sorted(lines))}\n\n__version__: str\n\n__all__ = [\n{public}]\n"


def core_homes() -> dict[str, str]:
    """Return name → module of what the core's `__init__` imports for type checkers."""
    branch = next(node for node in ast.parse(CORE.read_text()).body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def index() -> str:
    """Return the text of the index: which distribution of plugins/ offers which names."""
    ours = {f"stratagem-{project.parent.name}" for project in FACADE.parent.glob("*/pyproject.toml")}
    offers: dict[str, dict[str, list[str]]] = {}
    launchers: dict[str, str] = {}
    for component in load_catalogue().components:
        if component.origin.distribution in ours:
            homes = offers.setdefault(component.kind, {})
            homes.setdefault(component.origin.distribution, []).extend(component.names())
            launchers |= dict.fromkeys(component.launcher_variables, component.name)
    sorted_offers = {
        kind: {home: sorted(names) for home, names in sorted(homes.items())}
        for kind, homes in sorted(offers.items())
    }
    content = {"offers": sorted_offers, "launchers": dict(sorted(launchers.items()))}
    return json.dumps(content, indent=2) + "\n"


if __name__ == "__main__":
    STUBS.write_text(stubs())
    INDEX.write_text(index())
