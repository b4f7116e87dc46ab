"""`stratagem example | demo`: examples in the package, for users without a checkout."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import click

from stratagem.errors import ConfigError

EXAMPLES = {"digits": "recognises handwritten digits; needs scikit-learn, which has the images"}
DEMO = (
    "fit",
    "digits.py:Digits",
    "--max-epochs",
    "10",
    "--strategy",
    "ddp",
    "--accelerator",
    "cpu",
    "--devices",
    "2",
)


@click.command(
    epilog="\b\nExamples:\n  stratagem example\n  stratagem example digits",
)
@click.argument("name", required=False)
def example(name: str | None) -> None:
    """Write the example NAME to NAME.py in this folder. Without NAME, list the examples."""
    if name is None:
        for each, summary in EXAMPLES.items():
            click.echo(f"{each}  {summary}")
        return
    click.echo(f"{write(name)}: stratagem fit {name}.py:{name.capitalize()}")


@click.command(
    epilog="\b\nExamples:\n  stratagem demo",
)
def demo() -> None:
    """Train the example digits in two processes on this machine's CPU."""
    if find_spec("sklearn") is None:
        raise ConfigError(
            "the demo's images come with scikit-learn, which isn't installed: pip install 'stratagem[examples]'"
        )
    write("digits")
    click.echo(f"stratagem {shlex.join(DEMO)}")
    sys.exit(subprocess.call([sys.executable, "-m", "stratagem", *DEMO]))


def write(name: str) -> Path:
    """Write an example to the working directory. Keep the file if it has that content already.

    Raises:
        ConfigError: there is no such example, or there is another file of this name.
    """
    if name not in EXAMPLES:
        raise ConfigError(f"there is no example {name!r}; available: {', '.join(EXAMPLES)}")
    text = (files("stratagem_trainer") / "examples" / f"{name}.py.txt").read_text(encoding="utf-8")
    path = Path(f"{name}.py")
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
        raise ConfigError(f"{path} exists already, and isn't the example: move it, or use another folder")
    path.write_text(text, encoding="utf-8")
    return path
