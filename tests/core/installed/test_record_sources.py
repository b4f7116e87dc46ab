"""Which files decide what a plugin's module gives, and where that can't be sources_of."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import pytest

from stratagem.installed.record_sources import sources_of


def files_of(site: Any, source: str, value: str = "plain_plugin", **modules: str) -> set[str] | None:
    """Names of the files that decide, without the folder; the module is imported first."""
    for name, text in {**modules, "plain_plugin": source}.items():
        site.write(name, text)
    try:
        import_module(value.partition(":")[0])
        found = sources_of(value)
    finally:
        for name in (*modules, "plain_plugin"):
            sys.modules.pop(name, None)
    if found is None:
        return None
    folder = str(site.path)
    assert all(os.path.isabs(path) for path in found)
    return {os.path.relpath(path, folder) for path in found}


@pytest.mark.parametrize("value", ["plain_plugin", "plain_plugin:NAME", " plain_plugin : NAME [extra]"])
def test_a_module_of_definitions_is_its_file_and_folder(site: Any, value: str) -> None:
    site.write("plain_plugin", "")
    import plain_plugin

    assert sources_of(value) == {plain_plugin.__file__, str(site.path)}


@pytest.mark.parametrize(
    "source",
    [
        '"""Text."""\nNAME = "a"\nAGE: int = 3\n',
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport collections.abc\n",
        "from stratagem import Component\nimport stratagem.errors\n",
        "def of(name):\n    from typing import Any\n    return Any\nclass A:\n    pass\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n    from os import path\n",
        "def __getattr__(name):\n    import importlib\n    raise AttributeError(name)\n",
        "def __getattr__(name):\n    import torch\n    raise AttributeError(name)\n",
        "from importlib import import_module\ndef __getattr__(name):\n    raise AttributeError(import_module)\n",
    ],
)
def test_definitions_and_pure_modules_decide_alone(site: Any, source: str) -> None:
    assert files_of(site, source) == {"plain_plugin.py", "."}


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import torch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    print('loaded')",
        "import os",
        "import stratagem, platform",
        "from sys import path",
        "def later():\n    import torch",
        "class A:\n    from os import sep",
        "print('loaded')",
        "if True:\n    pass",
        "for name in ():\n    pass",
        "NAME = ''\nNAME += 'a'",
        "1 + 1",
        *(f"def read():\n    return {name}" for name in ("open", "exec", "eval", "input", "__import__")),
        "def read(importlib):\n    return importlib",
        "from importlib import import_module\nNAME = import_module('os').sep",
        "from importlib import import_module as load\nNAME = load('os').sep",
        "import importlib as lib\nNAME = lib.import_module('os').sep",
        "import json",
    ],
)
def test_other_conditions_give_no_sources(site: Any, source: str) -> None:
    assert files_of(site, source) is None


def test_modules_without_source_or_import_are_not_listed(site: Any) -> None:
    assert sources_of("a_module_that_is_not_there") is None
    assert sources_of("math") is None
    site.write("plain_plugin", "NAME = 'a'")
    import plain_plugin

    assert plain_plugin.NAME == "a"
    site.write("elsewhere", "")
    (site.path / "plain_plugin.py").write_text("def f(:")
    assert sources_of("plain_plugin") is None
    (site.path / "plain_plugin.py").write_bytes(b"NAME = '\x00'")
    assert sources_of("plain_plugin") is None


@pytest.fixture
def package(site: Any) -> Any:
    """A package `pack` with a plugin; `write` writes a file of it."""
    (site.path / "pack/inner").mkdir(parents=True)

    def write(name: str, source: str = "") -> None:
        (site.path / "pack" / name).write_text(source)

    for name in ("__init__.py", "inner/__init__.py", "plugin.py", "names.py"):
        write(name)

    def sources(value: str = "pack.plugin") -> set[str] | None:
        import_module(value)
        found = sources_of(value)
        return None if found is None else {os.path.relpath(path, site.path) for path in found}

    write.sources = sources  # type: ignore[attr-defined]  # functions take any attribute
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "pack"]:
        del sys.modules[name]


OWN = {"pack", "pack/__init__.py", "pack/plugin.py"}
INNER = {"pack/inner", "pack/inner/__init__.py", "pack/inner/deep.py", "pack/inner/deeper.py"}


def test_a_packages_modules_decide_with_it(package: Any) -> None:
    assert package.sources() == OWN


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("from pack.names import NAME", {"pack/names.py"}),
        ("import pack.names", {"pack/names.py"}),
        ("from pack import names", {"pack/names.py"}),
        ("from .names import NAME", {"pack/names.py"}),
        ("from . import names", {"pack/names.py"}),
        (
            "from .inner.deep import NAME",
            {"pack/names.py", *INNER},
        ),
    ],
)
def test_what_it_imports_of_its_package_decides_too(package: Any, source: str, more: set[str]) -> None:
    package("names.py", "NAME = 'a'\n")
    package("inner/deep.py", "from .deeper import NAME\n")
    package("inner/deeper.py", "from ..names import NAME\n")
    package("plugin.py", source + "\n")
    assert package.sources() == OWN | more


def test_one_module_that_does_more_spoils_it(package: Any) -> None:
    package("names.py", "import os\nNAME = os.sep\n")
    package("plugin.py", "from .names import NAME\n")
    assert package.sources() is None


@pytest.mark.parametrize("name", ["a_pack", "z_pack"])
def test_a_package_is_imported_before_its_module_and_decides_too(site: Any, name: str) -> None:
    (site.path / name).mkdir()
    (site.path / name / "__init__.py").write_text("import os\nNAME = os.sep\n")
    (site.path / name / "plugin.py").write_text("NAME = 'a'\n")
    import_module(f"{name}.plugin")
    assert sources_of(f"{name}.plugin") is None


def test_a_folder_without_a_source_of_its_own_has_none(package: Any, site: Any) -> None:
    (site.path / "pack/__init__.py").unlink()
    assert package.sources() == OWN - {"pack/__init__.py"}


def test_names_that_a_package_makes_when_they_are_asked_for_are_not_known(package: Any) -> None:
    package("__init__.py", "def __getattr__(name):\n    import os\n    return os.sep\n")
    package("plugin.py", "from pack import NAME\n")
    assert package.sources() is None


def test_names_that_it_keeps_once_they_were_made_are_not_known_either(package: Any) -> None:
    lazy = (
        "import importlib\ndef __getattr__(n):\n    import os\n    globals()[n] = os.sep\n    return os.sep\n"
    )
    package("__init__.py", lazy)
    package("plugin.py", "from pack import NAME\n")
    assert package.sources() is None
    assert vars(sys.modules["pack"])["NAME"] == os.sep


def test_a_module_of_a_package_with_a_getattr_is_known(package: Any) -> None:
    package("__init__.py", "def __getattr__(name):\n    raise AttributeError(name)\n")
    package("plugin.py", "from pack import names\n")
    assert package.sources() == OWN | {"pack/names.py"}


def test_modules_of_stratagem_decide_by_their_own_files_alone() -> None:
    import stratagem.plugin.own as own

    assert sources_of("stratagem.plugin.own") == {own.__file__, os.path.dirname(own.__file__ or "")}
