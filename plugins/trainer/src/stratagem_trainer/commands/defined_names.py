"""Find the names that a Python file defines, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class DefinedNames:
    """Names at a file's top level."""

    classes: tuple[str, ...]
    """Names of the classes, in the order of the file."""
    all: frozenset[str]
    """Names of classes, functions, variables and imports."""
    complete: bool
    """False if more names may come from `import *` or a module's `__getattr__`."""

    @classmethod
    def of(cls, source: bytes, path: str) -> DefinedNames:
        """Read a file's source.

        Raises:
            SyntaxError: it isn't Python.
        """
        classes: list[str] = []
        names: set[str] = set()
        for statement in _top_level(ast.parse(source, path).body):
            if isinstance(statement, ast.ClassDef):
                classes.append(statement.name)
            names.update(_bound_by(statement))
        return cls(tuple(classes), frozenset(names), not names & {"*", "__getattr__"})


def _top_level(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Yield the statements that bind names at the top level, also those under `if`, `try`, `for` and `with`."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _top_level(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from _top_level(handler.body)


def _bound_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.For)):
        targets = [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
