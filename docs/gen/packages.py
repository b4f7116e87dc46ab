"""Write what lists our distributions in other files, from packages.toml: `make packages`.

Each list stands between a line with `packages: NAME` and the next line with `packages: end`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where mypy and pytest bring its forerunner
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).parents[2]
VERSION = "0.1.*"
PLACES = ("stratagem", "extra", "extra, not in all")
FIELDS = {"brings", "in", "with", "extras"}

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
    texts = {}
    for path, regions in FILES.items():
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


FILES: dict[str, dict[str, Callable[[Packages], list[str]]]] = {
    "pyproject.toml": {
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
