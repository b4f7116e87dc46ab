"""Distributions for tests: real metadata and real modules in a folder on sys.path."""

import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from stratagem.installed.plugins import forget_installed


@dataclass
class Site:
    """A folder on sys.path into which distributions are installed."""

    path: Path

    def install(
        self, name: str, plugin: str, *, version: str = "1.0", requires: str = "", **modules: str
    ) -> None:
        """Install a distribution whose entry point `<package>` is a module with the source `plugin`."""
        package = name.replace("-", "_")
        self.write(f"{package}_plugin", plugin)
        for module, source in modules.items():
            self.write(module, source)
        info = self.path / f"{package}-{version}.dist-info"
        info.mkdir()
        required = "".join(f"Requires-Dist: {each}\n" for each in requires.split(", ") if each)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")
        (info / "entry_points.txt").write_text(f"[stratagem]\n{package} = {package}_plugin\n")
        forget_installed()

    def uninstall(self, name: str) -> None:
        package = name.replace("-", "_")
        for info in self.path.glob(f"{package}-*.dist-info"):
            for file in info.iterdir():
                file.unlink()
            info.rmdir()
        forget_installed()

    def write(self, module: str, source: str) -> None:
        (self.path / f"{module}.py").write_text(dedent(source))
        sys.modules.pop(module, None)

    def offer(self, name: str, *components: str, **kwargs: str) -> None:
        """Install a distribution that offers `components`, each the arguments of a `Component`."""
        records = "".join(f"        Component({arguments}),\n" for arguments in components)
        source = (
            "from stratagem.plugin.component import Component\n"
            "from stratagem.plugin.hookspecs import hookimpl\n"
            "@hookimpl\n"
            "def stratagem_components():\n"
            f"    return [\n{records}    ]\n"
        )
        self.install(name, source, **kwargs)


@pytest.fixture
def site(tmp_path, monkeypatch):
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    before = set(sys.modules)
    yield Site(path)
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(path) in sys.modules[module].__file__:
            del sys.modules[module]
    forget_installed()
