"""Write what lists our distributions in other files, from packages.toml: `make packages`.

Each list stands between a line with `packages: NAME` and the next line with `packages: end`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where mypy and pytest bring its forerunner
    import tomli as tomllib  # type: ignore[no-redef]  # the same module under its older name

ROOT = Path(__file__).parents[2]
VERSION = "0.1.*"
PLACES = ("stratagem", "extra", "extra, not in all")
FIELDS = {"brings", "in", "with", "extras"}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
"""Those that .github/workflows runs the tests under."""
KEYWORDS = ("pytorch", "deep learning", "distributed training")
CLASSIFIERS = (
    "Development Status :: 3 - Alpha",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    *(f"Programming Language :: Python :: {version}" for version in PYTHONS),
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
)
"""What a distribution is, in PyPI's words, which have none for PyTorch."""

Packages = dict[str, dict[str, Any]]


def read(path: Path = ROOT / "packages.toml") -> Packages:
    """Return name → table of packages.toml, checked."""
    text = path.read_text()
    packages: Packages = tomllib.loads(text)
    for name, package in packages.items():
        unknown = sorted(package.keys() - FIELDS)
        if unknown:
            raise SystemExit(
                f"packages.toml: [{name}] has unknown fields {', '.join(unknown)}; allowed: {sorted(FIELDS)}"
            )
        if package.get("in") not in PLACES or not package.get("brings"):
            raise SystemExit(f'packages.toml: [{name}] needs "brings", and "in" must be one of {PLACES}')
    for name, lines in _comments(text).items():
        packages[name]["comment"] = lines
    return packages


def _comments(text: str) -> dict[str, str]:
    """Comment lines right above a table's head, which are written into pyproject.toml as well."""
    return {name: lines for lines, name in re.findall(r"^((?:# .*\n)+)\[([\w-]+)\]$", text, re.MULTILINE)}


def written(packages: Packages, root: Path = ROOT) -> dict[Path, str]:
    """Return path → text of each file that lists packages, with the lists as packages.toml has them."""
    projects = {f"{_folder(name)}/pyproject.toml": name for name in packages}
    files = {path: dict(regions) for path, regions in FILES.items()}
    for path, name in projects.items():
        if (root / path).exists():
            files[path] = {"metadata": partial(_metadata, name)}
    texts = {}
    for path, regions in files.items():
        text = (root / path).read_text()
        for region, lines in regions.items():
            text = _replaced(text, path, region, lines(packages))
        texts[root / path] = text
    return texts


def _replaced(text: str, path: str, region: str, lines: Iterable[str]) -> str:
    pattern = re.compile(
        rf"^( *)([^\n]*packages: {region}\b[^\n]*\n).*?^([^\n]*packages: end)", re.DOTALL | re.MULTILINE
    )
    body = "".join(f"{line}\n" for line in lines)
    text, count = pattern.subn(
        lambda found: f"{found[1]}{found[2]}{textwrap.indent(body, found[1])}{found[3]}", text
    )
    if count != 1:
        raise SystemExit(f"{path} has {count} regions `packages: {region}`; it needs one")
    return text


def _plugins(packages: Packages) -> list[str]:
    return sorted(name for name in packages if name != "core")


def _folder(name: str) -> str:
    return "core" if name == "core" else f"plugins/{name}"


def _quoted(lines: Iterable[str]) -> list[str]:
    return [f'"{line}",' for line in lines]


def _requirement(name: str, extra: str | None = None) -> str:
    return f"stratagem-{name}{f'[{extra}]' if extra else ''}=={VERSION}"


def _dependencies(packages: Packages) -> list[str]:
    return _quoted(
        _requirement(name, package.get("with"))
        for name, package in packages.items()
        if package["in"] == "stratagem"
    )


def _extras(packages: Packages) -> list[str]:
    lines = {}
    for name, package in packages.items():
        comment = package.get("comment", "")
        if package["in"] != "stratagem":
            lines[name] = f'{comment}{name} = ["{_requirement(name, package.get("with"))}"]'
        for extra in package.get("extras", ()):
            lines[extra] = f'{extra} = ["{_requirement(name, extra)}"]'
    apart = {name for name, package in packages.items() if package["in"] == "extra, not in all"}
    everything = ",".join(sorted(lines.keys() - apart))
    return [*(lines[name] for name in sorted(lines)), f'all = ["stratagem[{everything}]"]']


def _modules(packages: Packages) -> list[str]:
    return _quoted(f"stratagem_{name.replace('-', '_')}" for name in _plugins(packages))


def _sources(packages: Packages) -> list[str]:
    return ["core/src", *(f"{_folder(name)}/src" for name in _plugins(packages))]


def _table(packages: Packages) -> list[str]:
    brought = [f"`{name}`" for name, package in packages.items() if package["in"] == "stratagem"]
    sentence = f"`stratagem` depends on {', '.join(brought[:-1])} and {brought[-1]}."
    rows = [f"| `stratagem-{name}` | {package['brings']} |" for name, package in packages.items()]
    return ["", "| package | what it brings |", "| --- | --- |", *rows, "", *textwrap.wrap(sentence, 118), ""]


def _matrix(packages: Packages) -> list[str]:
    names = ["core", *_plugins(packages)]
    rows = [f"- {{project: {_folder(name)}, name: stratagem-{name}}}" for name in names]
    return ['- {project: ".", name: stratagem}', *rows]


def _metadata(name: str, packages: Packages) -> list[str]:
    keywords = [*KEYWORDS, *([] if name in KEYWORDS else [name.replace("-", " ")])]
    listed = ", ".join(f'"{each}"' for each in keywords)
    return [
        'authors = [{ name = "The Stratagem maintainers" }]',
        f"keywords = [{listed}]",
        "classifiers = [",
        *(f'  "{each}",' for each in CLASSIFIERS),
        "]",
    ]


FILES: dict[str, dict[str, Callable[[Packages], list[str]]]] = {
    "pyproject.toml": {
        "metadata": partial(_metadata, "plugins"),
        "dependencies": _dependencies,
        "extras": _extras,
        "mypy": lambda packages: _quoted(_sources(packages)),
        "root_packages": _modules,
        "unknown to the core": _modules,
        "independent": _modules,
        "on the sdk": _modules,
    },
    ".github/workflows/release.yml": {"matrix": _matrix},
    "README.md": {"table": _table},
    "docs/gen/mkdocs.yml": {"paths": lambda packages: [f"- ../../{path}" for path in _sources(packages)]},
}


if __name__ == "__main__":
    for target, text in written(read()).items():
        target.write_text(text)
