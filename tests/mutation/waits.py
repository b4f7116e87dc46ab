"""The waits of a module, each removed: what `make mutate-sim` tries on the simulated device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.mutation.mutants import Mutant

CALLS = ("synchronize", "wait_stream", "wait_event", "record_stream", "record")
"""Methods whose call is a statement of its own that makes, or waits for, an event or a stream."""
WORK = ("work", "_work", "reduced")
"""What collectives return is called so: its `wait` is one for the device, as that of a thread's event isn't."""


def waits_of(path: str, source: str) -> list[Mutant]:
    """Return the module once for each wait, without that one, in the order of lines."""
    mutants: list[Mutant] = []
    for operator, node, text in sorted(_changes(source), key=lambda change: change[1].lineno):
        lines = source.splitlines(keepends=True)
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        # Of one line each, as offsets are in bytes: the code here is ASCII where it is changed.
        begin, end = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        before = " ".join(line.strip() for line in lines[first : last + 1])
        lines[first : last + 1] = [begin + text + end]
        after = (begin + text + end).strip()
        mutants.append(Mutant(path, operator, len(mutants), node.lineno, "".join(lines), before, after))
    return mutants


def _changes(source: str) -> Iterator[tuple[str, ast.stmt | ast.expr, str]]:
    """Yield what is left out, where, and what takes its place."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_wait(node.value):
            yield "wait", node, "pass"
        elif isinstance(node, ast.Assign) and _is_copy_of_targets(node):
            yield "copy to the CPU", node, "pass"
        elif isinstance(node, ast.keyword) and node.arg == "non_blocking":
            if not (isinstance(node.value, ast.Constant) and node.value.value is True):
                yield "blocking copy", node.value, "True"
        elif isinstance(node, ast.FunctionDef) and _pins(node):
            for call in ast.walk(node):
                if _is_blocking_copy(call):
                    assert isinstance(call, ast.Call)
                    yield "blocking copy", call, f"{ast.unparse(call)[:-1]}, non_blocking=True)"


def _is_wait(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    receiver = node.func.value
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    if node.func.attr == "wait":
        return name in WORK
    return node.func.attr in CALLS


def _is_copy_of_targets(node: ast.Assign) -> bool:
    """Whether names get what they had, on the CPU: `a, b = a.cpu(), b.cpu()`."""
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
    return len(values) == len(targets) and all(
        ast.unparse(value) == f"{ast.unparse(target)}.cpu()" for value, target in zip(values, targets)
    )


def _pins(node: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.keyword) and each.arg == "pin_memory" for each in ast.walk(node))


def _is_blocking_copy(node: ast.AST) -> bool:
    is_copy = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "copy_"
    return is_copy and not any(keyword.arg == "non_blocking" for keyword in getattr(node, "keywords", ()))
