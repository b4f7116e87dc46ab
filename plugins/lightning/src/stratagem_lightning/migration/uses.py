"""Finds uses of Lightning's names that exist here but behave differently: arguments, hooks, attributes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from stratagem_facade.former_settings import renamed_selection

from stratagem.errors import ConfigError, nearest
from stratagem_lightning.absent import FIT_LIMITS, GONE, LOOPS, MEMBERS, UNREACHABLE
from stratagem_lightning.migration.lookup import missing_name, where_is
from stratagem_lightning.migration.modules import module_here
from stratagem_lightning.names import MODULES
from stratagem_lightning.private_methods import PRIVATE
from stratagem_lightning.uncalled import UNCALLED

_TRAINERS = {"trainer", "_trainer"}
_FABRICS = {"fabric", "_fabric"}


def lacking_uses(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and reason of each use that would be refused here.

    Finds arguments of a `Trainer(…)` that is imported from Lightning; methods of classes that derive from
    Lightning's; attributes of variables named `trainer` or `fabric`; names that are looked up in Lightning's modules;
    and checkpoints that are read as files.
    """
    bound = dict(_bound_names(tree))
    classes = _lightnings_bases(tree, bound)
    limits = {
        id(each.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and each.attr in FIT_LIMITS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _arguments(node, bound)
            yield from _read_as_file(node, bound)
        elif isinstance(node, ast.ClassDef):
            yield from _methods(node, classes.get(node.name, set()))
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node, bound, id(node) in limits)


def _attribute(node: ast.Attribute, bound: dict[str, str], has_limit: bool) -> Iterator[tuple[int, str, str]]:
    owner = _name_of(node.value).rpartition(".")[2]
    if owner in _TRAINERS:
        reason = {**UNREACHABLE, **MEMBERS["Trainer"]}.get(node.attr)
        if node.attr == "fit_loop" and not has_limit:
            reason = f"it has {', '.join(FIT_LIMITS)} alone: {LOOPS}"
        if reason is not None:
            yield node.lineno, f"trainer.{node.attr}", reason
    elif owner in _FABRICS and bound and node.attr in MEMBERS["Fabric"]:
        yield node.lineno, f"fabric.{node.attr}", MEMBERS["Fabric"][node.attr]
    module = _resolved(node.value, bound)
    name = f"{module}.{node.attr}"
    is_module = (module_here(module) or "").removeprefix("stratagem_lightning").removeprefix(".") in MODULES
    if module and is_module and where_is(name) is None and not node.attr.startswith("__"):
        yield node.lineno, name, missing_name(name)


def _read_as_file(call: ast.Call, bound: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Find `torch.load(callback.best_model_path)`, which fails because a checkpoint here is a folder."""
    if not bound or _name_of(call.func) != "torch.load" or not call.args:
        return
    paths = {each.attr for each in ast.walk(call.args[0]) if isinstance(each, ast.Attribute)} & _PATHS
    for path in sorted(paths):
        yield (
            call.lineno,
            f"torch.load(….{path})",
            "a checkpoint is a folder: load_from_checkpoint reads it, and ModelCheckpoint(as_file=True) writes files",
        )


_PATHS = {"best_model_path", "last_model_path", "kth_best_model_path"}


def _bound_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that imports bind in the program, and Lightning's name for it."""
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
    """Return the dotted name of Lightning that an expression stands for; "" for anything else."""
    root, dot, rest = _name_of(node).partition(".")
    return bound[root] + dot + rest if root in bound else ""


def _arguments(call: ast.Call, bound: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    if _resolved(call.func, bound).rpartition(".")[2] != "Trainer":
        return
    from stratagem_trainer.arguments import REPLACED

    from stratagem_lightning.trainer import Trainer

    known = set(inspect.signature(Trainer).parameters) - {"further"}
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        reason, value = None, _value(keyword.value)
        if keyword.arg == "strategy" and isinstance(value, str):
            reason = GONE.get(value)
        try:
            renamed_selection(**{keyword.arg: value})
        except ConfigError as error:
            reason = str(error)
        if reason is None and keyword.arg not in known:
            reason = REPLACED.get(keyword.arg) or nearest(keyword.arg, sorted(known))
        if reason is not None:
            yield keyword.value.lineno, f"Trainer({keyword.arg}=…)", reason


def _lightnings_bases(tree: ast.Module, bound: dict[str, str]) -> dict[str, set[str]]:
    """Return class of the program → Lightning's classes that it derives from, directly or through other classes."""
    bases: dict[str, set[str]] = {}
    for node in ast.walk(tree):  # visits outer and earlier classes first
        if isinstance(node, ast.ClassDef):
            found: set[str] = set()
            for base in node.bases:
                name = _resolved(base, bound).rpartition(".")[2]
                found |= {name} if name else bases.get(_name_of(base), set())
            if found:
                bases[node.name] = found
    return bases


def _methods(node: ast.ClassDef, bases: set[str]) -> Iterator[tuple[int, str, str]]:
    from stratagem_trainer.module.hook_names import ELSEWHERE

    reasons: dict[str, str] = {}
    for base in sorted(bases):
        if base in _HOOK_OWNERS or base in CALLBACKS:
            reasons |= ELSEWHERE
        for kind in _with_parents(base):
            reasons |= UNCALLED.get(kind, {})
            names, why = PRIVATE.get(kind, ((), ""))
            reasons |= dict.fromkeys(names, why)
        if base == "LightningModule":
            reasons |= {
                name: why for name, why in MEMBERS[base].items() if name.startswith("on_")
            } | ELSEWHERE
    for each in node.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name in reasons:
            yield each.lineno, f"{node.name}.{each.name}", reasons[each.name]
    if "LightningModule" in bases:
        yield from _own_attributes(node)


def _own_attributes(node: ast.ClassDef) -> Iterator[tuple[int, str, str]]:
    """Yield the members of Lightning's module that the program uses by `self` and that aren't here."""
    defined = {each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and _name_of(each.value) == "self" and each.attr not in defined:
            reason = MEMBERS["LightningModule"].get(each.attr)
            if reason is not None:
                yield each.lineno, f"self.{each.attr}", reason


def _with_parents(base: str) -> Iterator[str]:
    """Return a class of Lightning and its base classes, as far as private_methods.py and uncalled.py list them."""
    yield base
    for parent in ("ProgressBar", "Profiler"):
        if base.endswith(parent) and base != parent:
            yield parent
    if base in CALLBACKS and base != "Callback":
        yield "Callback"


CALLBACKS = MODULES["pytorch.callbacks"]
_HOOK_OWNERS = {"LightningModule", "LightningDataModule"}


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
