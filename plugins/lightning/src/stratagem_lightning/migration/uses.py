"""Finds what a program does with names of Lightning's that are here, but differ: arguments, hooks, attributes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from stratagem.errors import ConfigError, nearest
from stratagem.sdk.selection import renamed_selection
from stratagem_lightning.absent import FIT_LIMITS, LOOPS, MEMBERS, UNREACHABLE
from stratagem_lightning.migration.modules import module_here

_BASES = {"LightningModule", "Callback", "LightningDataModule"}
_TRAINERS = {"trainer", "_trainer"}


def lacking_uses(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and reason of each use that would be refused here.

    Found are arguments of a `Trainer(…)` that is imported from Lightning, methods of classes that derive from
    its own, and attributes of what is called `trainer`.
    """
    bound = dict(_bound_names(tree))
    limits = {
        id(each.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and each.attr in FIT_LIMITS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _arguments(node, bound)
        elif isinstance(node, ast.ClassDef):
            yield from _methods(node, bound)
        elif isinstance(node, ast.Attribute) and _name_of(node.value).rpartition(".")[2] in _TRAINERS:
            reason = {**UNREACHABLE, **MEMBERS["Trainer"]}.get(node.attr)
            if node.attr == "fit_loop" and id(node) not in limits:
                reason = f"it has {', '.join(FIT_LIMITS)} alone: {LOOPS}"
            if reason is not None:
                yield node.lineno, f"trainer.{node.attr}", reason


def _bound_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What imports bind: the name in the program, and Lightning's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if module_here(each.name):
                    root = each.name.partition(".")[0]
                    yield each.asname or root, each.name if each.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and module_here(node.module):
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _resolved(node: ast.expr, bound: dict[str, str]) -> str:
    """The dotted name of Lightning's that an expression stands for; "" for anything else."""
    root, dot, rest = _name_of(node).partition(".")
    return bound[root] + dot + rest if root in bound else ""


def _arguments(call: ast.Call, bound: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    if _resolved(call.func, bound).rpartition(".")[2] != "Trainer":
        return
    from stratagem_trainer.arguments import REPLACED

    from stratagem_lightning.trainer import Trainer

    known = set(inspect.signature(Trainer).parameters)
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg not in known:
            try:
                renamed_selection(**{keyword.arg: _value(keyword.value)})
                reason = REPLACED.get(keyword.arg) or nearest(keyword.arg, sorted(known))
            except ConfigError as error:
                reason = str(error)
            yield keyword.value.lineno, f"Trainer({keyword.arg}=…)", reason


def _methods(node: ast.ClassDef, bound: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    from stratagem_trainer.hook_names import ELSEWHERE

    bases = {_resolved(base, bound).rpartition(".")[2] for base in node.bases} & _BASES
    for each in node.body if bases else ():
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name in ELSEWHERE:
            yield each.lineno, f"{node.name}.{each.name}", ELSEWHERE[each.name]


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
