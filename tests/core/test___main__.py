"""`python -m stratagem` is the command line, or says what to install for it."""

import runpy
import sys

import pytest

import stratagem


class WithoutCommandLine:
    """Finds nothing of stratagem-cli, as where it isn't installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "stratagem_cli":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["stratagem", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("stratagem", run_name="__main__", alter_sys=True)
    return ended.value.code


def test_it_does_what_the_command_does_and_ends_with_its_code(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert stratagem.__version__ in capsys.readouterr().out
    assert run(monkeypatch, "no-such-command") == 2
    assert "no-such-command" in capsys.readouterr().err


def test_without_the_command_line_it_says_what_to_install(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "stratagem_cli"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutCommandLine(), *sys.meta_path])
    assert run(monkeypatch, "--version") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "Error: the command line is in stratagem-cli, which is not installed: pip install stratagem-cli\n"
    )


def test_its_import_runs_nothing():
    for name in ("imported", "__imported__"):  # before and after "__main__"
        assert "main" not in runpy.run_module("stratagem.__main__", run_name=name)
