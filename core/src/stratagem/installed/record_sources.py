"""Finds the files on which a plugin's records depend, from its module's source."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable

_PURE = frozenset(
    ("__future__", "collections", "dataclasses", "enum", "functools", "itertools", "types", "typing")
)
"""Modules of Python that put nothing into records which differs between processes."""
_DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
_READING = frozenset(("open", "__import__", "exec", "eval", "input", "import_module", "importlib"))
_LAZY = ("importlib", "importlib.import_module")
"""Allowed only in the `__getattr__` of a package that imports its names when they are used."""


def sources_of(value: str) -> set[str] | None:
    """Return the files, and their folders, that determine the records of an entry point's module.

    The module must have been imported. The result is None if other files may matter, too, or if importing the module
    may do more than define names. That is so if the module, or a module of its package that it imports, does one of
    these: it imports more than stratagem and a few pure modules of Python, opens files, or has statements other than
    definitions.
    """
    start = value.partition("[")[0].partition(":")[0].strip()
    own = start.partition(".")[0]
    todo, seen, files = [start], set(), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if own != "stratagem" and "." in name:
            todo.append(name.rpartition(".")[0])
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None and hasattr(module, "__path__"):
            continue  # a namespace: it has no source
        try:
            with open(file or "", "rb") as source:
                tree = ast.parse(source.read())
        except (OSError, SyntaxError, ValueError):
            return None
        statements = _run_at_import(tree)
        if not all(map(_defines, statements)):
            return None
        nodes = [node for part in statements if not _is_getattr(part) for node in ast.walk(part)]
        if _read_elsewhere(nodes):
            return None
        files |= {os.path.abspath(str(file)), os.path.dirname(os.path.abspath(str(file)))}
        package = name if hasattr(module, "__path__") else name.rpartition(".")[0]
        for imported in _imports(nodes, package):
            top = imported.partition(".")[0]
            if top == own != "stratagem":
                if imported not in sys.modules and _comes_lazily(imported):
                    return None
                todo += [imported] if imported in sys.modules else []
            elif top not in _PURE and top != "stratagem" and imported not in _LAZY:
                return None
    return files


def _run_at_import(tree: ast.Module) -> list[ast.stmt]:
    """Return a module's top-level statements, without those for type checkers."""
    statements: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            statements += statement.orelse
        else:
            statements.append(statement)
    return statements


def _defines(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, _DEFINING)


def _is_getattr(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__"


def _read_elsewhere(nodes: Iterable[ast.AST]) -> bool:
    """Whether the code may read files, or import modules whose names aren't in the source."""
    return any(
        (isinstance(node, ast.Name) and node.id in _READING)
        or (isinstance(node, ast.alias) and node.asname and node.name in _READING)  # used by another name
        for node in nodes
    )


def _comes_lazily(name: str) -> bool:
    """Whether a name that is imported from a package may come from its `__getattr__`, and so from unknown files.

    That is possible even if the package has the name by now.
    """
    return hasattr(sys.modules.get(name.rpartition(".")[0]), "__getattr__")


def _imports(nodes: Iterable[ast.AST], package: str) -> list[str]:
    """Return the names of all imported modules, including imported names that may be modules."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found
