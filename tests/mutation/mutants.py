"""The mutants of a module: what cosmic-ray's operators make of it, less what can't change behaviour."""

from __future__ import annotations

import ast
import difflib
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

EQUIVALENT = Path(__file__).with_name("equivalent.yaml")

# Identity for equality and back changes nothing for the names, numbers and None that are compared here.
LEFT_OUT = ("_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq", "/VariableReplacer", "/VariableInserter")

Position = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change of one place."""

    path: str
    """Of the module, below the repository's root."""
    operator: str
    occurrence: int
    line: int
    source: str
    """Of the whole module, with the change."""
    before: str
    """The lines that it changes, stripped and joined."""
    after: str


def mutants_of(sources: Mapping[str, str], sample: int | None, seed: int) -> list[Mutant]:
    """Return mutants of modules, in the order of paths and lines, without those that are listed as equivalent.

    Args:
        sources: path of each module → its text.
        sample: how many of them, chosen at random from all modules' places; None for all.
        seed: of that choice, the same for the same texts.
    """
    places = [(path, *place) for path, source in sources.items() for place in _places(source)]
    random.Random(seed).shuffle(places)
    listed = {path: equivalents(path) for path in sources}
    chosen: list[Mutant] = []
    for path, operator, occurrence, line in places:
        mutant = _mutant(path, sources[path], operator, occurrence, line)
        if mutant is not None and not is_equivalent(mutant, listed[path]):
            chosen.append(mutant)
        if len(chosen) == sample:
            break
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.line, mutant.operator, mutant.occurrence))


def equivalents(path: str) -> list[dict[str, str]]:
    """What is listed of the folders above `path`: lines `before`, where needed lines `after`, and `why`.

    They are listed by folder, so that a module can be moved within it.
    """
    return [
        each
        for folder, entries in listed_by_folder().items()
        if path.startswith(f"{folder}/")
        for each in entries
    ]


@cache
def listed_by_folder() -> Mapping[str, list[dict[str, str]]]:
    """What the file of equivalent mutants has."""
    return yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or {}


def is_equivalent(mutant: Mutant, listed: list[dict[str, str]]) -> bool:
    """Whether a mutant is among those that are listed as changing nothing."""
    return any(
        each["before"] == mutant.before and each.get("after", mutant.after) == mutant.after for each in listed
    )


def _places(source: str) -> Iterator[tuple[str, int, int]]:
    skipped, tree = _skipped(source), get_ast(source)
    nodes = list(ast_nodes(tree))
    for name in sorted(operator_names()):
        if name.endswith(LEFT_OUT):
            continue
        operator, occurrence = get_operator(name)(), 0
        for node in nodes:
            # The `*` and `/` between parameters are read as operators.
            is_marker = node.type == "operator" and node.parent.type == "parameters"
            for begin, _ in operator.mutation_positions(node):
                if not is_marker and not any(first <= begin < last for first, last in skipped):
                    yield name, occurrence, begin[0]
                occurrence += 1


def _mutant(path: str, source: str, operator: str, occurrence: int, line: int) -> Mutant | None:
    try:
        mutated = mutate_code(source, get_operator(operator)(), occurrence)
    except (
        AttributeError
    ):  # cosmic-ray can't replace a dotted name in `except (json.JSONDecodeError, OSError)`
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if mutated is None or ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
                return None
    except SyntaxError:
        return None
    changes = list(difflib.ndiff(source.splitlines(), mutated.splitlines()))
    before, after = (
        " ".join(each[2:].strip() for each in changes if each.startswith(sign)) for sign in ("- ", "+ ")
    )
    return Mutant(path, operator, occurrence, line, mutated, before, after)


def _is_protocol(base: ast.expr) -> bool:
    return isinstance(base, ast.Name) and base.id == "Protocol"


def _has_code(method: ast.FunctionDef) -> bool:
    """Whether it has more than a docstring or an ellipsis."""
    return not all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in method.body
    )


def _skipped(source: str) -> list[tuple[Position, Position]]:
    """Where a change is one of types, of a protocol, of an abstract method's mark, or of an error's text."""
    found: list[Any] = []  # nodes with a position
    marks: list[ast.Name] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            found.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.returns is not None:
                found.append(node.returns)
            decorators = (each for each in node.decorator_list if isinstance(each, ast.Name))
            marks += [each for each in decorators if each.id == "abstractmethod"]
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.ClassDef) and any(_is_protocol(base) for base in node.bases):
            found += [each for each in node.body if isinstance(each, ast.FunctionDef) and not _has_code(each)]
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found.append(node)
    lines = source.splitlines()

    def place(line: int, bytes_before: int) -> Position:
        # Python counts bytes, parso characters.
        return line, len(lines[line - 1].encode()[:bytes_before].decode())

    return [
        (place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)) for node in found
    ] + [((mark.lineno, 0), (mark.lineno + 1, 0)) for mark in marks]
