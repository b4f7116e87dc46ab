"""Write docs/sdk.md, and with --surface print every public name with its signature: `make sdk` runs both.

The source is the stubs of `stratagem`, the modules of `stratagem.sdk`, and those of the library `stratagem_sharding`
that have a list of names, nothing else.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import stratagem_sharding

import stratagem
from stratagem import sdk

STUBS = Path(__file__).parents[2] / "plugins/facade/src/stratagem-stubs/__init__.pyi"
INTRODUCTION = """\
# The sdk

<!-- Written by `make sdk` from stratagem/sdk/: edit that. -->

Import these names in a plugin:

```python
from stratagem import ParallelStrategy, errors
from stratagem.sdk.catalogue import API_VERSION
```

A plugin may import from core the names of `stratagem` ([protocols](reference/protocols.md)), the errors in
`stratagem.errors`, and the names below. import-linter refuses anything else in `plugins/`. Names that aren't
listed here may change in any version. The modules of `stratagem_sharding` are in a separate distribution,
stratagem-sharding, a library for strategies.

Within one `API_VERSION`, names and parameters are only added. docs/gen/surface.txt lists them all, and a test
fails when it changes without intent.
"""


def sdk_modules() -> list[str]:
    """Names of the modules of `stratagem.sdk`, and of the library for strategies, in order."""
    found = [
        f"{package.__name__}.{module.name}"
        for package in (sdk, stratagem_sharding)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return [name for name in found if getattr(import_module(name), "__all__", None)]


def page() -> str:
    """Return docs/sdk.md."""
    lines = [INTRODUCTION.rstrip()]
    for name in sdk_modules():
        module = import_module(name)
        lines += [
            "",
            f"## {name}",
            "",
            inspect.getdoc(module) or "",
            "",
            "| name | what it is |",
            "| --- | --- |",
        ]
        for public in module.__all__:
            signature = _signatures(name, public)[0].removeprefix(f"{name}.").replace("|", "\\|")
            lines.append(f"| `{signature}` | {_summary(name, public)} |")
    return "\n".join(lines) + "\n"


def surface() -> str:
    """Return docs/gen/surface.txt: a line per public name, field and method."""
    names = [("stratagem", name) for name in stratagem.__all__]
    names += [(module, name) for module in sdk_modules() for name in import_module(module).__all__]
    return "".join(f"{line}\n" for module, name in names for line in _signatures(module, name))


def _signatures(module: str, name: str) -> list[str]:
    node, home = _found(module, name)
    public = f"{module}.{name}"
    if isinstance(node, ast.FunctionDef):
        return [_function(public, node)]
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return [f"{public}({bases})" if bases else public, *_members(public, node), *_inherited(module, name)]
    assert node is not None, f"{public} isn't defined in {home}"
    return [public]


def _members(public: str, node: ast.ClassDef) -> Iterator[str]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (member.name == "__init__" or member.name[0] != "_"):
            yield _function(f"{public}.{member.name}", member)
        elif isinstance(member, ast.AnnAssign) and not ast.unparse(member).startswith("_"):
            yield f"{public}.{ast.unparse(member)}"


def _inherited(module: str, name: str) -> Iterator[str]:
    """Members that come from bases which aren't public themselves."""
    kind = getattr(import_module(module), name)
    for base in kind.__mro__[1:]:
        if base.__module__.startswith("stratagem") and base.__name__ not in stratagem.__all__:
            node, _ = _found(base.__module__, base.__name__)
            if isinstance(node, ast.ClassDef):
                yield from _members(f"{module}.{name}", node)


def _function(public: str, node: ast.FunctionDef) -> str:
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{public}({ast.unparse(node.args)}){answer}"


def _summary(module: str, name: str) -> str:
    node, home = _found(module, name)
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        doc = ast.get_docstring(node) or ""
    else:
        body: list[Any] = ast.parse(inspect.getsource(import_module(home))).body
        after = body[[ast.unparse(one) for one in body].index(ast.unparse(node)) + 1 :][:1]
        text = after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant)
        doc = inspect.cleandoc(str(after[0].value.value)) if text else ""
    return " ".join(doc.partition("\n\n")[0].split()).replace("|", "\\|")


def _found(module: str, name: str) -> tuple[ast.stmt | None, str]:
    """The statement that defines a public name, and the module that it is in."""
    home = module
    while True:
        # Names of other distributions in `stratagem` are only in its stubs.
        tree = ast.parse(STUBS.read_text() if home == "stratagem" else inspect.getsource(import_module(home)))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return node, home
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and any(
                isinstance(target, ast.Name) and target.id == name for target in targets
            ):
                return node, home
        further = [
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names)
        ]
        if not further or further[0] is None:
            return None, home
        home = further[0]


if __name__ == "__main__":
    sys.stdout.write(surface() if "--surface" in sys.argv else page())
