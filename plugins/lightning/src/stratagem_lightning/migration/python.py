"""Rewrites a Python program's imports, and finds what is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from stratagem_lightning.migration.lookup import missing_name, names_something, where_is
from stratagem_lightning.migration.modules import CLASS_PATH, module_here
from stratagem_lightning.migration.others import uses_of_others
from stratagem_lightning.migration.uses import lacking_uses


@dataclass(frozen=True, order=True)
class Lack:
    """Something that a program uses and that isn't here.

    Attributes:
        line: in the program, from 1.
        what: the name in the program.
        reason: why it isn't here, or what to write instead.
    """

    line: int
    what: str
    reason: str


@dataclass(frozen=True)
class _Change:
    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def rewrite(source: str) -> tuple[str, list[Lack]]:
    """Return the program with rewritten imports and class paths, and what it lacks, by line.

    Raises:
        SyntaxError: `source` isn't Python.
    """
    tree = ast.parse(source)
    changes: list[_Change] = []
    lacks: set[Lack] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(module_here(each.name) for each in node.names):
                changes.append(_replace(node, _import(node)))
            lacks.update(Lack(node.lineno, *lack) for lack in _lacking_modules(node))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            here = module_here(node.module)
            if here is not None:
                changes.append(_replace(node, _import_from(node, here)))
                lacks.update(Lack(node.lineno, *lack) for lack in _lacking_names(node, here))
        elif isinstance(node, ast.Constant) and _is_class_path(node.value):
            here = where_is(node.value)
            if here is not None:
                changes.append(_replace(node, f'"{here}"'))
            elif names_something(node.value):
                lacks.add(Lack(node.lineno, node.value, missing_name(node.value)))
    lacks.update(Lack(*use) for use in (*lacking_uses(tree), *uses_of_others(tree)))
    return _apply(source, changes), sorted(lacks)


def rewrite_text(text: str) -> tuple[str, list[Lack]]:
    """Return a configuration file with rewritten class paths, and the class paths that aren't here, by line.

    Comments aren't changed.
    """
    lacks = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        end = _comment_of(line)
        value, comment = line[:end], line[end:]
        for name in CLASS_PATH.findall(value):
            if where_is(name) is None and names_something(name):
                lacks.append(Lack(number, name, missing_name(name)))
        lines[number - 1] = (
            CLASS_PATH.sub(lambda match: where_is(match.group()) or match.group(), value) + comment
        )
    return "".join(lines), lacks


def _comment_of(line: str) -> int:
    """Return where a comment begins in a line of YAML or TOML: at a "#" outside of quotes, after a space."""
    quote = ""
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            # An apostrophe inside a word doesn't begin a quotation.
            quote = character if index == 0 or not line[index - 1].isalnum() else ""
        elif character == "#" and (index == 0 or line[index - 1].isspace()):
            return index
    return len(line)


def _is_class_path(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and CLASS_PATH.fullmatch(value) is not None


def _replace(node: ast.stmt | ast.expr, text: str) -> _Change:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _Change((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text)


def _import(node: ast.Import) -> str:
    """Rewrite `import lightning.pytorch as pl`. An import without `as` binds the same name as before."""
    statements: list[str] = []
    for each in node.names:
        here = module_here(each.name)
        if here is None:
            statements.append(f"import {each.name}" + (f" as {each.asname}" if each.asname else ""))
        elif each.asname:
            statements.append(f"import {here} as {each.asname}")
        else:
            root = each.name.partition(".")[0]
            if root != each.name:
                statements.append(f"import {here}")
            statements.append(f"import {module_here(root)} as {root}")
    return f"\n{' ' * node.col_offset}".join(dict.fromkeys(statements))


def _import_from(node: ast.ImportFrom, here: str) -> str:
    names = [each.name + (f" as {each.asname}" if each.asname else "") for each in node.names]
    line = f"from {here} import {', '.join(names)}"
    if node.end_lineno == node.lineno or node.col_offset + len(line) <= 100:
        return line
    inner = "".join(f"{' ' * (node.col_offset + 4)}{name},\n" for name in names)
    return f"from {here} import (\n{inner}{' ' * node.col_offset})"


def _lacking_modules(node: ast.Import) -> Iterator[tuple[str, str]]:
    for each in node.names:
        if module_here(each.name) is not None and where_is(each.name) is None:
            yield each.name, missing_name(each.name)


def _lacking_names(node: ast.ImportFrom, here: str) -> Iterator[tuple[str, str]]:
    for each in node.names:
        name = f"{node.module}.{each.name}"
        if each.name != "*" and where_is(name) is None:
            yield name, missing_name(name)


def _apply(source: str, changes: list[_Change]) -> str:
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # ast counts columns in bytes
    for change in sorted(changes, key=lambda change: change.start, reverse=True):
        (first, begin), (last, end) = change.start, change.end
        joined = lines[first - 1][:begin] + change.text.encode() + lines[last - 1][end:]
        lines[first - 1 : last] = [joined]
    return b"".join(lines).decode()
