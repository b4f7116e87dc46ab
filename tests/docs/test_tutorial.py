"""The pages show code that is in the repository, and commands that exist."""

import ast
import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest
from stratagem_cli.commands import commands
from stratagem_trainer.commands.target import Target

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "core/README.md", *sorted(ROOT.glob("plugins/*/README.md"))]
PAGES = [*READMES, *sorted(ROOT.glob("docs/**/*.md")), *ROOT.glob("examples/**/*.md")]
FENCE = re.compile(r"^```(\w+)?(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str, str, str]]:
    """Page, language, title and text of all fenced blocks."""
    return [
        (str(page.relative_to(ROOT)), *(part or "" for part in match.groups()))
        for page in PAGES
        for match in FENCE.finditer(page.read_text())
    ]


QUOTES = [pytest.param(title, text, id=f"{page}: {title}") for page, _, title, text in blocks() if title]


@pytest.mark.parametrize(("title", "text"), QUOTES)
def test_quoted_code_is_in_the_file_it_names(title, text):
    source = (ROOT / title).read_text()
    assert any(textwrap.indent(text, " " * depth) in source for depth in (0, 4, 8, 12))


PYTHON = [text for _, language, title, text in blocks() if language in ("python", "py") and not title]


@pytest.mark.parametrize("text", PYTHON)
def test_other_python_on_the_pages_is_python(text):
    if not text.startswith("def ") or ":\n" in text:  # signatures on the page of hooks have no body
        ast.parse(textwrap.dedent(text))


def commands_on_pages() -> list[tuple[str, str]]:
    lines = []
    for page, language, _, text in blocks():
        if language in ("sh", "bash"):
            lines += [(page, line.split("#")[0].strip()) for line in text.replace("\\\n", " ").splitlines()]
    return [(page, line) for page, line in lines if line.startswith(("stratagem ", "make "))]


@pytest.mark.parametrize(("page", "line"), commands_on_pages())
def test_a_command_on_a_page_exists_with_its_flags(page, line):
    words = shlex.split(line)
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in words[1:] if "=" not in word and word not in targets] == []
        return
    group = click.Context(commands, info_name="stratagem")
    command = commands.get_command(group, words[1])
    assert command is not None, f"{page}: no command {words[1]!r}"
    context = command.make_context(words[1], words[2:], parent=group)
    context.close()
    target = context.params.get("target")
    if target and target.startswith("examples/"):
        Target.parse(str(ROOT / target))


def test_pages_have_quotes_and_commands():
    assert len(QUOTES) >= 6
    assert len(commands_on_pages()) >= 10
