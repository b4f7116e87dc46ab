"""What libraries keep private is used in one file of each layer and plugin, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = ("torch", "deepspeed", "fairscale", "torch_xla", "torchao", "torchmetrics")
FILES = tuple(
    f"{name}_private.py"
    for name in ("torch", "deepspeed", "fairscale", "xla", "torchao", "torchmetrics", "lightning")
)
STANDARD = {
    "_exit": "os",
    "_getframe": "sys",
    "_args_from_interpreter_flags": "subprocess",
    "_inheriting": "multiprocessing's process",
    "_asdict": "named tuples, where it is public",
    "_replace": "named tuples, where it is public",
    "_fields": "named tuples, where it is public",
}
"""Names of Python's own library."""
ALLOWED = {
    ("stratagem_model_parallel", "_prepare_input_fn"): "a ParallelStyle's own, which ours are subclasses of",
    ("stratagem_model_parallel", "_prepare_output_fn"): "a ParallelStyle's own, which ours override",
    ("stratagem_model_parallel", "_apply"): "the one method that a ParallelStyle overrides",
}


def sources() -> list[Path]:
    return sorted([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[parts.index("src") + 1]


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def written(tree: ast.AST) -> Iterator[str]:
    """Yield private names that a source has as attributes, imports or strings."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            dotted = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            names = [part for name in dotted for part in name.split(".")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        yield from filter(is_private, names)


@cache
def theirs() -> frozenset[str]:
    """Names in the files for them; what core and plugins call so themselves is distinguished by its place."""
    return frozenset(name for path in sources() if path.name in FILES for name in written(parsed(path)))


def defined(tree: ast.AST) -> set[str]:
    """Return private names that a source defines: functions, class attributes, attributes of self."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return found


@cache
def defined_in(package: str) -> frozenset[str]:
    """Names that a distribution defines, or core, whose classes plugins derive theirs from."""
    parts = {package, "stratagem"}
    own = [path for path in sources() if path.name not in FILES and parts & set(path.relative_to(ROOT).parts)]
    return frozenset(name for path in own for name in defined(parsed(path)))


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def uses(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of each use of a library's private name."""
    own = defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                dotted = f"{module}.{alias.name}".strip(".").split(".")
                if dotted[0] in LIBRARIES and any(map(is_private, dotted)):
                    yield node.lineno, ".".join(dotted)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr in STANDARD or (package, node.attr) in ALLOWED:
                continue
            is_own_object = is_self(node.value) or is_super(node.value)
            ours = defined_in(package) if is_own_object else defined_in(package) - theirs()
            if node.attr not in own | ours or (node.attr in theirs() and not is_own_object):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(rf"(?:{'|'.join(LIBRARIES)})(?:\.\w+)*", node.value)
            parts = node.value.split(".") if named else [node.value] if node.value in theirs() else []
            if any(map(is_private, parts)):
                yield node.lineno, repr(node.value)


def test_private_names_of_libraries_are_in_the_files_for_them():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sources()
        if path.name not in FILES
        for line, what in uses(parsed(path), package_of(path))
    ]
    assert not found, "move it to the layer's or the plugin's *_private.py, with the reason and a test"


def test_each_package_has_one_such_file():
    for name in FILES:
        folders = [path.parent for path in sources() if path.name == name]
        plugins = [folder for folder in folders if "plugins" in folder.relative_to(ROOT).parts]
        assert len({folder.relative_to(ROOT).parts[1] for folder in plugins}) == len(plugins)


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils._pytree import tree_map",
        "import torch._dynamo",
        "from torch_xla import _XLAC",
        "def f(tensor): return tensor._version",
        "def f(p): p._backward_hooks = None",
        "def f(module): return getattr(module, '_parameters')",
        "preload = ('torch', 'torch._dynamo')",
        "class A:\n    def f(self): return self._never_defined",
        "def f(zero): zero._optimizer_step = None",
    ],
)
def test_a_use_elsewhere_is_found(source: str):
    assert list(uses(ast.parse(source), "stratagem_ddp"))


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self): self._buffers = 1\n    def f(self): return self._buffers",
        "def _apply(runtime): runtime._close()\nclass R:\n    def _close(self): pass",
        "import os\nos._exit(1)",
        "'torch.nn'",
    ],
)
def test_own_names_are_not(source: str):
    assert not list(uses(ast.parse(source), "stratagem_ddp"))


@pytest.mark.parametrize(
    "path", [path for path in sources() if path.name in FILES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_each_file_has_tests(path: Path):
    reported = re.search(r"(?:tests|plugins)/[\w/-]+/test_\w+_private\.py", path.read_text())
    if path.parent.name == "sdk":
        assert reported is None
        assert not theirs() & set(written(parsed(path)))
    else:
        assert reported is not None
        assert (ROOT / reported[0]).is_file()
