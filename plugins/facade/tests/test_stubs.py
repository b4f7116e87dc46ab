"""What type checkers see of `stratagem` is what Python imports."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stratagem

FACADE = Path(__file__).parents[1]

PROGRAM = """\
import stratagem
from stratagem import Module, Runtime, Trainer, errors
from stratagem.sdk import runs

class Net(Module): ...

reveal_type(Trainer(max_epochs=1))
reveal_type(stratagem.Module)
reveal_type(Runtime)
reveal_type(errors.ConfigError)
stratagem.Trainr
"""


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


@pytest.mark.long
def test_a_type_checker_knows_every_name_and_refuses_a_misspelt_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file=",
            "--follow-imports=silent",
            "--cache-dir=cache",
            program,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = re.findall(r"(?:type is |error: )(.*)$", done.stdout, re.MULTILINE)
    assert [line.partition("Overload")[0] for line in said[:1]] == ['"stratagem_trainer.trainer.Trainer"'], (
        done.stdout
    )
    assert ".Module" in said[1]
    assert "stratagem.runtime.runtime.Runtime" in said[2]
    assert "stratagem.errors.ConfigError" in said[3]
    assert said[4].startswith('Module has no attribute "Trainr"')
