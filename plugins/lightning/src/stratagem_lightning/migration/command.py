"""`stratagem migrate`: rewrites imports of Lightning, and lists what else must change in a program."""

from __future__ import annotations

import difflib
import tokenize
from io import BytesIO
from pathlib import Path

import click

from stratagem.errors import ConfigError
from stratagem_lightning.migration.python import Lack, rewrite, rewrite_text

_PYTHON = {".py", ".pyi"}
_CONFIGURATIONS = {".yaml", ".yml", ".json", ".toml"}


@click.command(
    epilog="\b\nExamples:\n  stratagem migrate train.py",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--diff", is_flag=True, help="Show what would change, and change nothing.")
@click.pass_context
def migrate(ctx: click.Context, files: tuple[Path, ...], diff: bool) -> None:
    """Rewrite imports of Lightning in FILE…, and list what is missing or has another name here, by line.

    Names of accelerate and of transformers' Trainer and TrainingArguments are listed, and not rewritten.

    FILE is a Python program, a configuration with class paths (.yaml, .json, .toml), or a folder, in which all
    of these are looked for. Exit code 1 where something isn't here.
    """
    lacks = 0
    # Read all files before writing one, so that an unreadable file doesn't leave the others half changed.
    for path, source, encoding, text, lacking in [_rewritten(path) for path in _found(files)]:
        if text != source and diff:
            lines = difflib.unified_diff(source.splitlines(True), text.splitlines(True), str(path), str(path))
            click.echo("".join(lines), nl=False)
        elif text != source:
            try:
                path.write_bytes(text.encode(encoding))
            except OSError as error:
                raise ConfigError(f"{path} can't be written: {error.strerror}") from error
            click.echo(f"{path}: imports rewritten")
        for lack in lacking:
            click.echo(_line(path, lack))
        lacks += len(lacking)
    if lacks:
        click.echo(f"{lacks} {'place needs' if lacks == 1 else 'places need'} a change by hand")
        ctx.exit(1)


def _rewritten(path: Path) -> tuple[Path, str, str, str, list[Lack]]:
    """Return a file's path, its text, its encoding, its new text, and what it lacks.

    Raises:
        ConfigError: the file can't be read, isn't text, or isn't Python.
    """
    is_python = path.suffix in _PYTHON
    try:
        content = path.read_bytes()
        encoding = tokenize.detect_encoding(BytesIO(content).readline)[0] if is_python else "utf-8"
        source = content.decode(encoding)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, LookupError, SyntaxError) as error:
        raise ConfigError(
            f"{path} isn't text in UTF-8, nor in an encoding that it declares: save it in UTF-8, or leave it out"
        ) from error
    try:
        text, lacking = rewrite(source) if is_python else rewrite_text(source)
    except SyntaxError as error:
        raise ConfigError(f"{path} isn't Python: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL character, or endless nesting
        raise ConfigError(f"{path} isn't Python: {error or type(error).__name__}") from None
    return path, source, encoding, text, list(lacking)


def _line(path: Path, lack: Lack) -> str:
    return f"{path}:{lack.line}: {lack.what}: {lack.reason}"


def _found(files: tuple[Path, ...]) -> list[Path]:
    found: list[Path] = []
    for path in files:
        if path.is_dir():
            inside = sorted(
                each
                for each in path.rglob("*")
                if each.suffix in _PYTHON | _CONFIGURATIONS and each.is_file()
            )
            found += [each for each in inside if not any(part.startswith(".") for part in each.parts)]
        elif not path.is_file():
            raise ConfigError(f"FILE {str(path)!r} can't be found: give programs, configurations or folders")
        elif path.suffix not in _PYTHON | _CONFIGURATIONS:
            allowed = ", ".join(sorted(_PYTHON | _CONFIGURATIONS))
            raise ConfigError(
                f"FILE {str(path)!r} must end with one of {allowed}: give programs, configurations or folders"
            )
        else:
            found.append(path)
    return found
