"""Print docs/hooks.md: `make hooks` runs this. The source is hookspecs.py and requests.py, nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from stratagem.plugin import hookspecs, requests


@dataclass(frozen=True)
class Hook:
    """One hookspec, read off its source."""

    name: str
    arguments: dict[str, str]
    """Name → type."""
    answer: str
    summary: str
    body: str
    argument_docs: dict[str, str]


@dataclass(frozen=True)
class Field:
    """One attribute of a request."""

    name: str
    type: str
    default: str
    doc: str


def hooks_of(group: type) -> list[Hook]:
    """Return the hookspecs in a class, in the order of its source."""
    tree = ast.parse(inspect.getsource(group)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return [_hook(node) for node in tree.body if isinstance(node, ast.FunctionDef)]


def _hook(node: ast.FunctionDef) -> Hook:
    arguments = {arg.arg: ast.unparse(arg.annotation) for arg in node.args.args[1:] if arg.annotation}
    doc = ast.get_docstring(node) or ""
    text, _, args = doc.partition("\nArgs:\n")
    summary, _, body = text.partition("\n")
    documented = {
        match[1]: re.sub(r"\s+", " ", match[2]).strip()
        for match in re.finditer(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", args, re.MULTILINE | re.DOTALL)
    }
    answer = ast.unparse(node.returns) if node.returns else "None"
    return Hook(node.name, arguments, answer, summary, body.strip(), documented)


def fields_of(request: str) -> list[Field]:
    """Return the fields of a request in requests.py, with the docstrings under them."""
    tree = ast.parse(inspect.getsource(getattr(requests, request))).body[0]
    assert isinstance(tree, ast.ClassDef)
    fields: list[Field] = []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            default = "" if node.value is None else ast.unparse(node.value)
            fields.append(Field(ast.unparse(node.target), ast.unparse(node.annotation), default, ""))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and fields:
            last = fields.pop()
            doc = re.sub(r"\s+", " ", str(node.value.value)).strip()
            fields.append(Field(last.name, last.type, last.default, doc))
    return fields


def _request_notes(request: str) -> str:
    doc = inspect.getdoc(getattr(requests, request)) or ""
    return doc.partition("\n")[2].strip()


def page() -> str:
    """Return docs/hooks.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    doc = inspect.getdoc(hookspecs) or ""
    title, _, introduction = doc.partition("\n")
    yield "# Hooks"
    yield ""
    yield "<!-- Written by `make hooks` from hookspecs.py and requests.py: edit those. -->"
    yield ""
    yield title
    yield from _prose(introduction).splitlines()
    yield ""
    yield "## The hooks of a run"
    yield ""
    yield inspect.getdoc(hookspecs.RunHooks) or ""
    for hook in hooks_of(hookspecs.RunHooks):
        yield from _section(hook)
    yield ""
    yield "## The hooks of discovery"
    yield ""
    yield inspect.getdoc(hookspecs.DiscoveryHooks) or ""
    for hook in hooks_of(hookspecs.DiscoveryHooks):
        yield from _section(hook)
    yield ""
    yield "## Parts of requests"
    yield ""
    yield "### Clipping"
    yield ""
    yield (inspect.getdoc(requests.Clipping) or "").partition("\n")[0]
    yield ""
    yield from _table("Clipping")


def _prose(text: str) -> str:
    """Turn reStructuredText's `::` before an indented block into a fenced block."""
    before, marker, code = text.partition("::\n")
    if not marker:
        return text
    return f"{before}:\n\n```py\n{inspect.cleandoc(code)}\n```"


def _section(hook: Hook) -> Iterator[str]:
    arguments = ", ".join(f"{name}: {kind}" for name, kind in hook.arguments.items())
    yield ""
    yield f"### {hook.name}"
    yield ""
    yield "```py"
    yield f"def {hook.name}({arguments}) -> {hook.answer}"
    yield "```"
    yield ""
    yield hook.summary
    if hook.body:
        yield ""
        yield from hook.body.splitlines()
    if hook.argument_docs:
        yield ""
    for name, doc in hook.argument_docs.items():
        yield f"- `{name}`: {doc}"
    if hook.name in hookspecs.RUN_HOOKS:
        yield ""
        yield f"The answer's protocol: [{hook.answer}](reference/protocols.md#{hook.answer.lower()})."
    for kind in hook.arguments.values():
        if hasattr(requests, kind):
            yield ""
            notes = _request_notes(kind)
            yield f"#### {kind}"
            yield ""
            if notes:
                yield from notes.splitlines()
                yield ""
            yield from _table(kind)


def _table(request: str) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for field in fields_of(request):
        kind = field.type.replace("|", "\\|")
        default = f"`{field.default}`" if field.default else ""
        yield f"| `{field.name}` | `{kind}` | {default} | {field.doc} |"


if __name__ == "__main__":
    sys.stdout.write(page())
