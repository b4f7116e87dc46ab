"""The files that a plugin's records depend on, found from its module's source."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator

_PURE = frozenset(
    ("__future__", "collections", "dataclasses", "enum", "functools", "itertools", "types", "typing")
)
"""Modules of Python from which nothing gets into records that differs from process to process."""
_DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
_READING = frozenset(("open", "__import__", "exec", "eval", "input", "import_module", "importlib"))
_LAZY = ("importlib", "importlib.import_module")
"""For the `__getattr__` of a package that imports its names when they are asked for, and nowhere else."""


def sources_of(value: str) -> set[str] | None:
    """Return the files, and their folders, that decide what an entry point's module gives; it has been imported.

    None where anything else may decide, or where importing the module may do more than define what is asked for: if
    it, or a module of its package that it imports, imports more than stratagem and a few pure modules of
    Python, opens files, or has statements beside definitions.
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
        if not _only_defines(tree):
            return None
        files |= {os.path.abspath(str(file)), os.path.dirname(os.path.abspath(str(file)))}
        package = name if hasattr(module, "__path__") else name.rpartition(".")[0]
        for imported in _imports(tree, package):
            top = imported.partition(".")[0]
            if top == own != "stratagem":
                if imported not in sys.modules and _comes_lazily(imported):
                    return None
                todo += [imported] if imported in sys.modules else []
            elif top not in _PURE and top != "stratagem" and imported not in _LAZY:
                return None
    return files


def _only_defines(tree: ast.Module) -> bool:
    for statement in tree.body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not (is_text or isinstance(statement, _DEFINING) or _is_for_type_checkers(statement)):
            return False
    used = [node for part in tree.body if not _is_getattr(part) for node in ast.walk(part)]
    return not any(
        (isinstance(node, ast.Name) and node.id in _READING)
        or (isinstance(node, ast.alias) and node.asname and node.name in _READING)  # used by another name
        for node in used
    )


def _is_getattr(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


def _comes_lazily(name: str) -> bool:
    """Whether a name that is imported from a package may be made by its `__getattr__`, out of unknown files."""
    package, _, attribute = name.rpartition(".")
    module = sys.modules.get(package)
    return hasattr(module, "__getattr__") and attribute not in vars(module)


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Names of all modules that are imported, and of what may be one."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if _is_for_type_checkers(node) or _is_getattr(node):
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
