"""`stratagem new plugin NAME`: a package that installs, is discovered, and passes the kit as it stands."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

import click

import stratagem
from stratagem.errors import ConfigError

KINDS = ("strategy", "accelerator", "precision", "checkpoint", "environment", "extension")


@click.group()
def new() -> None:
    """Write the files to begin with."""


@new.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="strategy", show_default=True, help="What it adds.")
@click.option(
    "--into", type=click.Path(file_okay=False), default=".", help="Folder for the new one; here if not given."
)
def plugin(name: str, kind: str, into: str) -> None:
    """Make the folder NAME with a plugin that installs and passes its tests.

    NAME is also what users will say, as in `--strategy NAME`.
    """
    folder = Path(into, name)
    written = write_plugin(folder, name, kind)
    click.echo("\n".join(str(path) for path in written))
    click.echo(
        f"\nNext:\n  pip install -e {folder}\n  {trial(name, kind)}\n"
        f"  pytest {folder}\n  docs/writing-a-plugin.md goes on from here"
    )


def trial(name: str, kind: str) -> str:
    """Return the command that tries what was written."""
    return (
        f"stratagem run --use {name} SCRIPT"
        if kind == "extension"
        else f"stratagem conformance {name} --kind {kind}"
    )


def write_plugin(folder: Path, name: str, kind: str) -> list[Path]:
    """Write the files of a plugin, and return their paths.

    Raises:
        ConfigError: the name can't be one, or the folder is there already, or can't be made.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise ConfigError(
            f"{name!r} can't be the name of a plugin: use small letters, digits, hyphens and underscores, as in "
            f"'my-{kind}'"
        )
    if folder.exists():
        raise ConfigError(f"{folder} is there already: choose another name, or remove it")
    package = name.replace("-", "_")
    values = {
        "name": name,
        "kind": kind,
        "package": package,
        "class_name": "".join(map(str.capitalize, package.split("_"))),
        "variable": package.upper(),
        "trial": trial(name, kind),
        "tests": kind if kind == "extension" else "conformance",
        "tested": "what it does" if kind == "extension" else "the conformance kit",
        "core": ".".join(stratagem.__version__.split(".")[:2]),
        "next_core": _next(stratagem.__version__),
    }
    source = f"src/{package}"
    targets = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        "init.py": f"{source}/__init__.py",
        f"{kind}_plugin.py": f"{source}/plugin.py",
        f"{kind}.py": f"{source}/{kind}.py",
        f"{kind}_test.py": f"tests/test_{values['tests']}.py",
    }
    templates = files("stratagem_testing") / "templates"
    written = []
    for template, target in targets.items():
        text = Template((templates / f"{template}.txt").read_text(encoding="utf-8")).substitute(values)
        written.append(_write(folder / target, text))
    return [*written, _write(folder / source / "py.typed", "")]


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
