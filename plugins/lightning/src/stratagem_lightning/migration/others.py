"""Finds names of accelerate and of transformers' Trainer in a program, and their equivalents."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files


@cache
def equivalents() -> Mapping[str, Mapping[str, str]]:
    """Return package → its names, such as "TrainingArguments(bf16)" → what to write instead.

    `make coming-from` writes this data from the tables in docs/coming-from-*.md.
    """
    data = files(__package__).joinpath("others.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Mapping[str, str]] = json.loads(data)
    return loaded


def uses_of_others(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, name, and what to write instead.

    Finds calls of classes that are imported from these packages, with their arguments, and attributes of variables to
    which such a call is assigned.
    """
    classes = dict(_imported(tree))
    variables = {
        target.id: classes[_name(node.value.func)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and _name(node.value.func) in classes
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in classes:
            package, cls = classes[_name(node.func)]
            for keyword in node.keywords:
                yield from _found(
                    package, f"{cls}({keyword.arg})", f"{cls}({keyword.arg}=…)", keyword.value.lineno
                )
        elif isinstance(node, ast.Attribute) and _name(node.value) in variables:
            package, cls = variables[_name(node.value)]
            yield from _found(package, f"{cls}.{node.attr}", f"{cls}.{node.attr}", node.lineno)


def _found(package: str, name: str, shown: str, line: int) -> Iterator[tuple[int, str, str]]:
    here = equivalents()[package].get(name)
    if here is not None:
        yield line, shown, here


def _imported(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the name by which the program calls a class → the class's package and name."""
    known = {
        package: {name.partition("(")[0].partition(".")[0] for name in names}
        for package, names in equivalents().items()
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            package = node.module.partition(".")[0]
            for each in node.names:
                if each.name in known.get(package, ()):
                    yield each.asname or each.name, (package, each.name)
        elif isinstance(node, ast.Import):
            for each in node.names:
                for cls in known.get(each.name, ()):
                    yield f"{each.asname or each.name}.{cls}", (each.name, cls)


def _name(node: ast.expr) -> str:
    """Return a dotted name; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""
