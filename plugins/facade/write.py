"""Write what type checkers and editors see of `stratagem`: `make facade` runs this.

The sources are `stratagem/__init__.py` of the core and the table of names in pyproject.toml.
"""

from __future__ import annotations

import ast
from pathlib import Path

import importlib_metadata

FACADE = Path(__file__).parent
CORE = FACADE.parents[1] / "core/src/stratagem/__init__.py"
STUBS = FACADE / "src/stratagem-stubs/__init__.pyi"
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


if __name__ == "__main__":
    STUBS.write_text(stubs())
