"""`stratagem plugins check`: whether a distribution is what discovery, other plugins and users expect of one."""

from __future__ import annotations

import difflib
import json
import keyword
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import importlib_metadata

from stratagem import Component
from stratagem.errors import UnknownNameError
from stratagem.sdk.catalogue import API_VERSION, GROUP, Catalogue

LIGHT_MS = 20.0
"""Milliseconds of CPU that importing a plugin's module may take, without what the core has imported already."""
HOOKS = ("stratagem_components", "stratagem_commands")
_ATTEMPTS = 4
_NAME = re.compile(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*")
_HEAVY = ("torch", "numpy", "pandas", "deepspeed", "fairscale", "horovod")

_IMPORTS = """
import contextlib, io, json, sys, time
import stratagem.installed.catalogue
from importlib import import_module
known, printed, error = set(sys.modules), io.StringIO(), ""
began = time.process_time()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    try:
        found = import_module({module!r})
    except BaseException as raised:
        error = f"{{type(raised).__name__}}: {{raised}}"
seconds = time.process_time() - began
heavy = sorted(set({heavy!r}) & (sys.modules.keys() - known))
functions = {{}}
for name, value in list(vars(found).items()) if not error else []:
    if callable(value) and (name.startswith("stratagem_") or hasattr(value, "stratagem_impl")):
        functions[name] = hasattr(value, "stratagem_impl")
print(json.dumps([1000 * seconds, heavy, printed.getvalue(), error, functions]), file=sys.__stdout__)
"""
_LOADS = """
import json, sys
from stratagem.sdk.catalogue import imported
wrong = {{}}
for target in {targets!r}:
    try:
        if not callable(imported(target)) and target not in {subjects!r}:
            wrong[target] = "isn't a class or a function"
    except BaseException as raised:
        wrong[target] = f"{{type(raised).__name__}}: {{raised}}"
print("\\n" + json.dumps(wrong), file=sys.__stdout__)
"""


@dataclass(frozen=True)
class Finding:
    """What came of one check of a distribution."""

    check: str
    """Name of the check, such as "names"."""
    ok: bool
    """Whether it holds."""
    detail: str
    """What is wrong, or what was seen."""


@dataclass(frozen=True)
class CheckedPlugin:
    """A distribution, what it offers, and what came of the checks."""

    distribution: str
    version: str
    offers: dict[str, list[str]]
    """Kind → names, aliases and presets among them."""
    import_ms: float
    """Milliseconds of CPU that importing its entry points took."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return all(finding.ok for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; docs/reference/cli.md has the keys."""
        return {**asdict(self), "findings": [asdict(each) for each in self.findings], "ok": self.ok}

    def index(self) -> dict[str, Any]:
        """Return what an index of known plugins has of it, from which install hints are made."""
        return {"offers": {kind: {self.distribution: names} for kind, names in self.offers.items()}}

    def badge(self) -> dict[str, Any]:
        """Return a badge as shields.io reads it (https://shields.io/badges/endpoint-badge)."""
        message, colour = (f"plugin API {API_VERSION}", "brightgreen") if self.ok else ("check fails", "red")
        return {"schemaVersion": 1, "label": "stratagem", "message": message, "color": colour}


def check_plugin(catalogue: Catalogue, name: str) -> CheckedPlugin:
    """Check an installed distribution. Imports its modules in other processes.

    Raises:
        UnknownNameError: no distribution of this name has an entry point in the group `stratagem`.
    """
    found = [
        each
        for each in importlib_metadata.entry_points(group=GROUP)
        if each.dist is not None and _normal(each.dist.name) == _normal(name)
    ]
    if not found:
        raise _unknown(name)
    distribution = found[0].dist
    assert distribution is not None
    imports = {each.name: _imported(each.module) for each in found}
    own = [c for c in catalogue.components if _normal(c.origin.distribution) == _normal(name)]
    offers: dict[str, list[str]] = {}
    for component in own:
        offers.setdefault(component.kind, []).extend(component.names())
    milliseconds = sum(each.milliseconds for each in imports.values())
    findings = (
        *_of_imports(imports, milliseconds),
        _said("hooks", _wrong_hooks(imports), f"it implements {_listed(_implemented(imports)) or 'none'}"),
        _said(
            "names",
            [*_wrong_names(catalogue, own), *_shadowed(distribution, found)],
            f"it offers {_words(offers)}",
        ),
        _said("records", _broken(catalogue, name), "what it offers can be read"),
        _said("api_version", _wrong_versions(own), f"written for plugin API {API_VERSION} or before"),
        _said("summaries", _wrong_summaries(own), "each component has one line"),
        _said("targets", _wrong_targets(own), f"{len(own)} can be imported, or need a missing package"),
    )
    return CheckedPlugin(_normal(name), distribution.version, offers, round(milliseconds, 1), findings)


def _unknown(name: str) -> UnknownNameError:
    names = {_normal(e.dist.name) for e in importlib_metadata.entry_points(group=GROUP) if e.dist is not None}
    near = difflib.get_close_matches(_normal(name), names, 1, 0.5)
    hint = f" Did you mean {near[0]}?" if near else " `stratagem plugins` lists those that have one."
    return UnknownNameError(
        f"no installed distribution {name!r} has an entry point in the group {GROUP!r}.{hint}"
    )


# Its module ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Import:
    milliseconds: float
    heavy: tuple[str, ...]
    printed: str
    error: str
    functions: dict[str, bool]
    """Name of a function that looks like a hook → whether it is marked by `hookimpl`."""


def _imported(module: str) -> _Import:
    """Import a module in a fresh process, where the core has been imported already."""
    program = _IMPORTS.format(module=module, heavy=_HEAVY)
    best: _Import | None = None
    for _ in range(_ATTEMPTS):  # a busy machine only makes it slower
        done = _run(program)
        if done.returncode:
            return _Import(0.0, (), done.stdout, done.stderr.strip()[-300:] or "the process ended", {})
        milliseconds, heavy, printed, error, functions = json.loads(done.stdout.strip().splitlines()[-1])
        # A library's own output, which bypasses sys.stdout, is in the lines before.
        printed += "".join(done.stdout.strip().splitlines()[:-1])
        found = _Import(milliseconds, tuple(heavy), printed, error, functions)
        best = found if best is None or found.milliseconds < best.milliseconds else best
        if best.milliseconds <= LIGHT_MS:
            break
    assert best is not None
    return best


def _run(program: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )


def _of_imports(imports: dict[str, _Import], milliseconds: float) -> Iterator[Finding]:
    failed = [
        f"importing entry point {name!r} fails: {each.error}" for name, each in imports.items() if each.error
    ]
    heavy = sorted({library for each in imports.values() for library in each.heavy})
    printed = [
        f"{name!r} prints {each.printed.strip()[:80]!r}" for name, each in imports.items() if each.printed
    ]
    slow = (
        [f"importing takes {milliseconds:.0f} ms of CPU, more than {LIGHT_MS:.0f}"]
        if milliseconds > LIGHT_MS
        else []
    )
    yield _said("import", failed, "it can be imported")
    yield _said(
        "light",
        [f"importing it imports {', '.join(heavy)}: import them in the module of a target"]
        if heavy
        else slow,
        f"{milliseconds:.1f} ms of CPU, and no torch",
    )
    yield _said("silent", printed, "importing it prints nothing")


def _implemented(imports: dict[str, _Import]) -> list[str]:
    return sorted({name for each in imports.values() for name, marked in each.functions.items() if marked})


def _wrong_hooks(imports: dict[str, _Import]) -> Iterator[str]:
    for each in imports.values():
        for name, marked in each.functions.items():
            if name in HOOKS and not marked:
                yield f"{name} lacks @hookimpl, so nothing calls it"
            elif name not in HOOKS:
                near = difflib.get_close_matches(name, HOOKS, 1, 0.0)[0]
                yield f"there is no hook {name}: did you mean {near}?"
        if not each.error and not any(each.functions.values()):
            yield f"it implements no hook: write {HOOKS[0]} and mark it with @hookimpl"


# What it offers -----------------------------------------------------------------------------------------


def _wrong_names(catalogue: Catalogue, own: Sequence[Component]) -> Iterator[str]:
    for component in own:
        for name in component.names():
            if not _NAME.fullmatch(name):
                yield f"{component.kind} {name!r} isn't written in small letters, digits, hyphens and underscores"
            if name in ("auto", "none", "all"):
                yield f"{component.kind} {name!r} has a reserved name"
            for other in catalogue.components:
                is_other = other.origin.distribution != component.origin.distribution
                if is_other and other.kind == component.kind and name in other.names():
                    yield f"{other.origin.distribution} offers {component.kind} {name!r}, too"


def _shadowed(distribution: Any, entry_points: Sequence[Any]) -> Iterator[str]:
    """Yield what is wrong with the names of a distribution's own modules."""
    homes = importlib_metadata.packages_distributions()
    own = _normal(distribution.name)
    modules = {module for module, owners in homes.items() if own in map(_normal, owners)}
    modules |= {each.module.partition(".")[0] for each in entry_points}
    for module in sorted(modules):
        if keyword.iskeyword(module) or module in sys.stdlib_module_names:
            yield f"its module {module!r} has the name of a keyword or a module of Python"
        others = sorted({_normal(owner) for owner in homes.get(module, ())} - {own})
        if others and not _is_namespace(module):
            yield f"its module {module!r} is that of {', '.join(others)}, too"


def _is_namespace(module: str) -> bool:
    from importlib.util import find_spec

    spec = find_spec(module)
    return spec is not None and spec.origin is None


def _broken(catalogue: Catalogue, name: str) -> Iterator[str]:
    for broken in catalogue.broken:
        if _normal(broken.origin.distribution) == _normal(name):
            yield f"{type(broken.error).__name__}: {broken.error}"


def _wrong_versions(own: Sequence[Component]) -> Iterator[str]:
    for component in own:
        if component.api_version > API_VERSION:
            yield (
                f"{component.kind} {component.name!r} is written for plugin API {component.api_version}, and this "
                f"core has {API_VERSION}"
            )


def _wrong_summaries(own: Sequence[Component]) -> Iterator[str]:
    for component in own:
        if not component.summary.strip() or "\n" in component.summary:
            yield f"{component.kind} {component.name!r} has no summary of one line"


def _wrong_targets(own: Sequence[Component]) -> Iterator[str]:
    here = [component for component in own if not component.missing()]
    subjects = [component.conformance for component in here if component.conformance]
    targets = [*(component.target for component in here), *subjects]
    malformed = [target for target in targets if not re.fullmatch(r"[\w.]+:\w+", target)]
    yield from (f"{target!r} isn't 'package.module:name'" for target in malformed)
    done = _run(_LOADS.format(targets=[each for each in targets if each not in malformed], subjects=subjects))
    if done.returncode:
        yield f"importing its targets ends the process: {done.stderr.strip()[-300:]}"
        return
    wrong = json.loads(done.stdout.strip().splitlines()[-1])
    yield from (f"{target} {problem}" for target, problem in wrong.items())


# --------------------------------------------------------------------------------------------------------


def _said(check: str, wrong: Iterator[str] | Sequence[str], otherwise: str) -> Finding:
    problems = list(dict.fromkeys(wrong))
    return Finding(check, not problems, "; ".join(problems) or otherwise)


def _words(offers: dict[str, list[str]]) -> str:
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in offers.items()) or "no component"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
