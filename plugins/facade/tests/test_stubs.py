"""What type checkers see of `stratagem` is what Python imports."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import stratagem

FACADE = Path(__file__).parents[1]


def test_the_stubs_and_the_index_are_current() -> None:
    spec = importlib.util.spec_from_file_location("facade_write", FACADE / "write.py")
    assert spec is not None
    assert spec.loader is not None
    write = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write)
    assert write.STUBS.read_text() == write.stubs(), "run `make facade`"
    assert write.INDEX.read_text() == write.index(), "run `make facade`"


def test_every_name_in_the_stubs_is_the_one_that_python_imports() -> None:
    text = (FACADE / "src/stratagem-stubs/__init__.pyi").read_text()
    imported = re.findall(r"^from (\S+) import (\w+) as \2$", text, re.MULTILINE)
    assert [name for _, name in imported if getattr(stratagem, name) is None] == []
    assert sorted(name for _, name in imported) == stratagem.__all__
