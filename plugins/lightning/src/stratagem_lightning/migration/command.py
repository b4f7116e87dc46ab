"""`stratagem migrate`: rewrites the imports of programs that were written for Lightning."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from stratagem.errors import ConfigError
from stratagem_lightning.migration.python import Lack, rewrite, rewrite_text

_PYTHON = {".py", ".pyi"}
_CONFIGURATIONS = {".yaml", ".yml", ".json", ".toml"}


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--diff", is_flag=True, help="Show what would change, and change nothing.")
@click.pass_context
def migrate(ctx: click.Context, files: tuple[Path, ...], diff: bool) -> None:
    """Rewrite imports of Lightning in FILE…, and list by line what isn't here.

    FILE is a Python program, a configuration with class paths (.yaml, .json, .toml), or a folder, in which all
    of these are looked for. Exit code 1 where something isn't here.
    """
    lacks = 0
    for path in _found(files):
        source = path.read_bytes().decode()
        try:
            text, lacking = rewrite(source) if path.suffix in _PYTHON else rewrite_text(source)
        except SyntaxError as error:
            raise ConfigError(f"{path} isn't Python: line {error.lineno}: {error.msg}") from None
        if text != source and diff:
            lines = difflib.unified_diff(source.splitlines(True), text.splitlines(True), str(path), str(path))
            click.echo("".join(lines), nl=False)
        elif text != source:
            path.write_bytes(text.encode())
            click.echo(f"{path}: imports rewritten")
        for lack in lacking:
            click.echo(_line(path, lack))
        lacks += len(lacking)
    if lacks:
        click.echo(f"{lacks} {'place needs' if lacks == 1 else 'places need'} a change by hand")
        ctx.exit(1)


def _line(path: Path, lack: Lack) -> str:
    return f"{path}:{lack.line}: {lack.what}: {lack.reason}"


def _found(files: tuple[Path, ...]) -> list[Path]:
    found: list[Path] = []
    for path in files:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix in _PYTHON | _CONFIGURATIONS)
            found += [each for each in inside if not any(part.startswith(".") for part in each.parts)]
        elif not path.is_file():
            raise ConfigError(f"FILE {str(path)!r} can't be found: give programs, configurations or folders")
        elif path.suffix not in _PYTHON | _CONFIGURATIONS:
            allowed = ", ".join(sorted(_PYTHON | _CONFIGURATIONS))
            raise ConfigError(
                f"FILE {str(path)!r} is none of {allowed}: give programs, configurations or folders"
            )
        else:
            found.append(path)
    return found
