"""No ring of imports in trainer, command line, kit and launcher, those for type checkers included.

A strategy and its `Prepared` name each other, since one is the other's settings: strategies are left out.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    f"stratagem_{name}": ROOT / f"plugins/{name}/src/stratagem_{name}"
    for name in ("trainer", "cli", "testing", "launch", "clusters")
}


def top_level(nodes: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, (ast.If, ast.Try)):
            yield from top_level([*node.body, *node.orelse])


def imports(package: Path) -> dict[str, set[str]]:
    """Module → modules of the same package that it imports when it is imported, or for types."""
    files = {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)): path
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        found = top_level(ast.parse(path.read_text()).body)
        named = {node.module for node in found if node.module is not None}
        graph[name] = named & files.keys()
    return graph


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_no_ring_of_imports(package):
    try:
        TopologicalSorter(imports(PACKAGES[package])).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_a_ring_would_be_found(tmp_path):
    (tmp_path / "one.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from x.two import b\n"
    )
    (tmp_path / "two.py").write_text("from x.one import a\n")
    package = tmp_path.rename(tmp_path.with_name("x"))
    with pytest.raises(CycleError):
        TopologicalSorter(imports(package)).prepare()
