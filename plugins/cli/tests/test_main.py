"""Help, exit codes and error messages."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import click
import pytest
from stratagem_cli.commands import SECTIONS, PluginGroup
from stratagem_cli.main import main
from stratagem_cli.reporting import run_reporting

from stratagem.errors import (
    BrokenPluginError,
    ConflictError,
    LoggingError,
    UnknownNameError,
    UsageError,
    WorkerError,
)

COMMANDS = sorted(
    [
        *("fit", "validate", "test", "predict", "run", "sweep"),
        *("strategies", "accelerators", "plugins", "doctor", "conformance", "new", "verify"),
        *("checkpoint", "completion", "demo", "example", "migrate", "report"),
        *("runs", "logs", "stop", "places", "diff", "replay"),
    ]
)


def test_help_of_all_commands_imports_nothing_heavy():
    source = f"""
        import sys
        from stratagem_cli.main import main
        for words in [["--help"], *([name, "--help"] for name in {COMMANDS})]:
            assert main(words) == 0, words
        heavy = {{"torch", "numpy", "jsonargparse", "rich", "yaml", "jinja2"}} & set(sys.modules)
        assert not heavy, heavy
    """
    done = subprocess.run([sys.executable, "-c", dedent(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: stratagem") == 1 + len(COMMANDS)
    assert done.stderr == ""


def test_importing_the_program_imports_no_click():
    # Workers import the launching program, too.
    source = "import sys, stratagem_cli.main; sys.exit('click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


def test_help_lists_commands_in_sections(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    headings = [f"\n{heading}:\n" for heading in SECTIONS]
    assert [out.index(heading) for heading in headings] == sorted(out.index(heading) for heading in headings)
    listed = [
        line.split()[0] for line in out[out.index("\nTrain:") :].splitlines() if re.match(r"  \w", line)
    ]
    assert listed[0] == "fit"
    assert sorted(listed[: len(COMMANDS)]) == COMMANDS
    assert "..." not in out[out.index("\nTrain:") :], "no sentence is cut"
    assert max(map(len, out.splitlines())) <= 80


def commands_in(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(group) as ctx:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            assert command is not None
            yield (*words, name), command
            if isinstance(command, click.Group):
                yield from commands_in(command, (*words, name))


EVERY = dict(commands_in(PluginGroup("stratagem")))


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_the_help_of_each_command_ends_with_examples_that_it_takes(words):
    assert EVERY[words].epilog is not None
    begin, heading, *examples = EVERY[words].epilog.splitlines()
    assert (begin, heading) == ("\b", "Examples:")
    assert examples
    for example in examples:
        program, *given = shlex.split(example.partition(" >> ")[0])
        path = next(path for n in (2, 1) if (path := tuple(given[:n])) in EVERY)
        assert program == "stratagem"
        assert path[: len(words)] == words
        command = EVERY[path]
        context = click.Context(command, info_name=path[-1], **command.context_settings)
        with context:
            command.make_parser(context).parse_args(given[len(path) :])


def test_a_mistyped_command_gets_a_suggestion(capsys):
    assert main(["fitt", "net.py:Net"]) == 2
    assert "no command 'fitt'; nearest: fit" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert "0.1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "nonsense"),
        (["fit", "--nonsense"], "--nonsense"),
        (["fit", "net.py:Net", "--num-nodes", "0"], "num_nodes='0'"),
        (["fit", "net.py:Net", "--max-epochs", "many"], "--max-epochs"),
        ([], "Usage: stratagem"),
    ],
)
def test_wrong_words_are_answered_with_usage_and_2(capsys, args, message):
    assert main(args) == 2
    assert message in capsys.readouterr().err


def test_commands_of_plugins(site, capsys):
    plugin = """
        import click
        from stratagem.plugin.hookspecs import hookimpl

        @hookimpl
        def stratagem_commands(cli):
            @cli.command()
            def greet():
                "Say hello."
                print("hello")
                return 5
    """
    broken = """
        from stratagem.plugin.hookspecs import hookimpl

        @hookimpl
        def stratagem_commands(cli):
            raise RuntimeError("no commands today")
    """
    site.install("greeting", plugin)
    site.install("silent", broken)
    group = PluginGroup("stratagem")
    with click.Context(group) as ctx:
        assert group.list_commands(ctx) == sorted([*COMMANDS, "greet"])
        assert group.main(["greet"], standalone_mode=False) is None
    assert capsys.readouterr().out == "hello\n"


GREET = """
    import click
    from stratagem.plugin.hookspecs import hookimpl

    @hookimpl
    def stratagem_commands(cli):
        cli.add_command(click.Command("greet", callback=lambda: print("hello")))
"""


def test_two_distributions_with_one_command_are_named(site):
    site.install("one-party", GREET)
    site.install("other-party", GREET)
    group = PluginGroup("stratagem")
    said = "the command 'greet' is offered by (one-party|other-party) 1.0 and .*: uninstall one"
    with pytest.raises(ConflictError, match=said):
        group.main(["greet"], standalone_mode=False)
    with click.Context(group) as ctx:
        assert "greet" in group.list_commands(ctx), "help goes on"


def test_a_command_of_ours_that_is_not_installed_is_named_with_its_distribution(monkeypatch):
    monkeypatch.setattr("stratagem_cli.commands.command_plugins", lambda: iter(()))
    group = PluginGroup("stratagem")
    with pytest.raises(UnknownNameError, match="'fit' isn't installed: pip install stratagem-trainer"):
        group.main(["fit", "net.py:Net"], standalone_mode=False)
    with pytest.raises(click.UsageError, match="no command 'fitt'; "):
        group.main(["fitt"], standalone_mode=False)


def raising(error):
    def command():
        raise error

    return command


def test_usage_errors_are_one_sentence(capsys):
    assert run_reporting(raising(UsageError("this is not available:\n  choose that"))) == 2
    assert capsys.readouterr().err == "Error: this is not available: choose that\n"


def test_a_broken_plugins_traceback_is_kept(capsys):
    def command():
        try:
            raise OSError("libvendor.so is missing")
        except OSError as error:
            raise BrokenPluginError("strategy 'x' can't be loaded") from error

    assert run_reporting(command) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("OSError: libvendor.so is missing\nError: strategy 'x' can't be loaded\n")


def test_a_workers_traceback_comes_before_the_line_that_names_it(capsys):
    error = WorkerError(
        "rank 3 on h3 failed: KeyError: 'x'", rank=3, host="h3", traceback="Trace\n", exit_code=7
    )
    assert run_reporting(raising(error)) == 7
    assert capsys.readouterr().err == "Trace\nError: rank 3 on h3 failed: KeyError: 'x'\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupted(error):
    assert run_reporting(raising(error)) == 130


@pytest.mark.parametrize("error", [ZeroDivisionError("own"), LoggingError("own")])
def test_other_errors_keep_their_traceback(error):
    with pytest.raises(type(error), match="own"):
        run_reporting(raising(error))


def test_a_closed_pipe_is_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -c 'from stratagem_cli.main import main; import sys; sys.exit(main())' plugins --json"
        " | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "["
    assert "Traceback" not in done.stderr
