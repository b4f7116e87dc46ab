"""`stratagem new plugin NAME`: write a package that installs, is discovered, and passes the kit without changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import cast

import click

import stratagem
from stratagem.errors import ConfigError
from stratagem.sdk.catalogue import Kind, imported, load_catalogue

KINDS = (
    "strategy",
    "accelerator",
    "precision",
    "checkpoint",
    "environment",
    "extension",
    "launcher",
    "logger",
    "place",
)
"""Kinds of scaffolds. A launcher is an extension that changes how runs are launched."""

TRIALS = {
    "extension": "stratagem run --use {name} SCRIPT",
    "launcher": "stratagem run --use {name} SCRIPT",
    "logger": "stratagem fit FILE:CLASS --logger {name}",
    "place": "stratagem run SCRIPT --on {name}",
}
"""Kind whose scaffold has its own tests → command that tries the component."""
LIBRARIES = {
    "strategy": ("stratagem-checkpoint", "stratagem-sharding"),
    "checkpoint": ("stratagem-checkpoint",),
    "environment": ("stratagem-clusters",),
    "logger": ("stratagem-trainer",),
    "place": ("stratagem-places",),
}
"""Distributions that a scaffold of a kind depends on, in addition to the core."""


@click.group(
    epilog="\b\nExamples:\n  stratagem new plugin mine",
)
def new() -> None:
    """Write the files for a new project."""


@new.command(
    epilog="\b\nExamples:\n  stratagem new plugin mine\n  stratagem new plugin quiet --kind extension",
)
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(KINDS), default="strategy", show_default=True, help="Kind of component."
)
@click.option(
    "--base", metavar="STRATEGY", help="Derive the new strategy from this installed one, such as ddp."
)
@click.option(
    "--into",
    type=click.Path(file_okay=False),
    default=".",
    help="Folder for the new one; by default this one.",
)
def plugin(name: str, kind: str, base: str | None, into: str) -> None:
    """Make the folder NAME with a plugin that installs and passes its tests.

    NAME is also the name for users, as in `--strategy NAME`.
    """
    folder = Path(into, name)
    written = write_plugin(folder, name, kind, base)
    click.echo("\n".join(str(path) for path in written))
    click.echo(
        f"\nNext:\n  pip install -e {folder}\n  {trial(name, kind)}\n"
        f"  pytest {folder}\n  docs/writing-a-plugin.md goes on from here"
    )


def trial(name: str, kind: str) -> str:
    """Return the command that tests the written plugin."""
    return TRIALS.get(kind, "stratagem conformance {name} --kind {kind}").format(name=name, kind=kind)


def write_plugin(folder: Path, name: str, kind: str, base: str | None = None) -> list[Path]:
    """Write the files of a plugin, and return their paths.

    Raises:
        ConfigError: the name isn't allowed, or the folder exists or can't be made; or `base` is given for another
        kind
            than a strategy.
        UnknownNameError: there is no strategy `base`.
    """
    if base is not None and kind != "strategy":
        raise ConfigError(
            f"--base {base} is a strategy to derive from, but the new component is a {kind}: leave it out"
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise ConfigError(
            f"{name!r} can't be the name of a plugin: use lowercase letters, digits, hyphens and underscores, as in "
            f"'my-{kind}'"
        )
    if folder.exists():
        raise ConfigError(f"{folder} exists already: choose another name, or remove it")
    package = name.replace("-", "_")
    class_name = "".join(map(str.capitalize, package.split("_")))
    if iskeyword(package) or iskeyword(class_name) or package in sys.stdlib_module_names:
        raise ConfigError(
            f"{name!r} can't be the name of a plugin: its package {package!r} or its class {class_name!r} would have "
            f"the name of a keyword or a module of Python; choose another, such as 'my-{name}'"
        )
    _refuse_taken(name, package, kind)
    values = {
        "name": name,
        "kind": kind,
        "package": package,
        "class_name": class_name,
        "variable": package.upper(),
        "trial": trial(name, kind),
        "tests": kind if kind in TRIALS else "conformance",
        "tested": "what it does" if kind in TRIALS else "the conformance kit",
        "core": ".".join(stratagem.__version__.split(".")[:2]),
        "dependencies": _requirement("stratagem-core", stratagem.__version__),
    }
    libraries = [_requirement(each, stratagem.__version__) for each in LIBRARIES.get(kind, ())]
    template = kind
    if base is not None:
        template = "derived"
        derived = _of_base(base)
        values = {**values, **derived}
        libraries = [derived["requirement"]]
    values["dependencies"] = ", ".join([values["dependencies"], *libraries])
    source = f"src/{package}"
    targets = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        "init.py": f"{source}/__init__.py",
        f"{template}_plugin.py": f"{source}/plugin.py",
        f"{template}.py": f"{source}/{kind}.py",
        f"{template}_test.py": f"tests/test_{values['tests']}.py",
    }
    if base is not None:
        targets["derived_conformance.py"] = f"{source}/conformance.py"
    templates = files("stratagem_testing") / "templates"
    written = []
    for template, target in targets.items():
        text = Template((templates / f"{template}.txt").read_text(encoding="utf-8")).substitute(values)
        written.append(_write(folder / target, text))
    return [*written, _write(folder / source / "py.typed", "")]


def _refuse_taken(name: str, package: str, kind: str) -> None:
    """Refuse a name that an installed module or component has."""
    catalogue = load_catalogue()
    for each in KINDS:
        if each != "launcher" and name in catalogue.names(cast("Kind", each)):
            found = catalogue.find(cast("Kind", each), name)
            raise ConfigError(
                f"{name!r} can't be the name of a plugin: {found.origin.distribution} has the {each} {name!r}; "
                f"choose another, such as 'my-{name}'"
            )
    if find_spec(package) is not None:
        raise ConfigError(
            f"{name!r} can't be the name of a plugin: its package would hide the installed module {package!r}; "
            f"choose another, such as 'my-{name}'"
        )


def _of_base(name: str) -> dict[str, str]:
    """Return template values for the base strategy."""
    component = load_catalogue().find("strategy", name)
    module, _, class_name = component.target.partition(":")
    package = module.partition(".")[0]
    subject_module, _, subject = component.conformance.partition(":")
    if subject:
        made = imported(component.conformance)
        subject_import = f"from {subject_module} import {subject}"
        subject += f'["{component.name}"]' if isinstance(made, Mapping) else ""
    else:
        subject_import = "from stratagem_testing import StrategySubject"
        subject = f'StrategySubject("{component.name}")'
    can = component.capabilities
    return {
        "base": component.name,
        "base_module": package if hasattr(import_module(package), class_name) else module,
        "base_class": class_name,
        "requirement": _requirement(component.origin.distribution, component.origin.version),
        "accelerators": repr(can.accelerators),
        "precisions": repr(can.precisions),
        "processes": can.processes,
        "start_methods": repr(can.start_methods),
        "features": "\n".join(f'{" " * 24}"{feature}",' for feature in sorted(can.features)),
        "subject_import": subject_import,
        "subject": subject,
    }


def _requirement(distribution: str, version: str) -> str:
    least = ".".join(version.split(".")[:2])
    return f'"{distribution}>={least},<{_next(version)}"'


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}; choose another --into") from error
    return path


def _next(version: str) -> str:
    major, minor = version.split(".")[:2]
    return f"{major}.{int(minor) + 1}" if major == "0" else f"{int(major) + 1}"
