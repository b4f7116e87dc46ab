"""What the fuzzer gives: values, arguments, configurations, variables and damaged checkpoints, all from a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.words import FLAGS, KEYS, ODD, STRATEGIES, VARIABLES


@dataclass
class Case:
    """One call of the command line."""

    arguments: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    """Written into the working directory before."""


def case(seed: int) -> Case:
    """Make the case of a number."""
    rng = random.Random(seed)
    made = Case([rng.choice(("fit", "fit", "fit", "validate", "predict", "run"))])
    if made.arguments == ["run"]:
        made.arguments += [*_flags(rng, made), rng.choice(("net.py", *ODD))]
        return _clean(made)
    if rng.random() < 0.9:
        made.arguments.append("net.py:Net" if rng.random() < 0.8 else rng.choice(ODD))
    made.arguments += _flags(rng, made)
    if rng.random() < 0.3:
        made.environ = {rng.choice(VARIABLES): _number_or_odd(rng) for _ in range(rng.randint(1, 8))}
    return _clean(made)


def damaged(seed: int, content: bytes) -> bytes:
    """Change a file: bits, a piece, or, of JSON, a value."""
    rng = random.Random(seed)
    how = rng.randrange(4)
    if how == 0 and content:
        place = rng.randrange(len(content))
        return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
    if how == 1:
        return content[: rng.randrange(len(content) + 1)]
    if how == 2:
        return rng.randbytes(rng.randrange(64))
    try:
        value = json.loads(content)
    except ValueError:
        return content[::-1]
    return json.dumps(_changed(rng, value)).encode()


def _changed(rng: random.Random, value: object) -> object:
    """Change one place of JSON."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        index = rng.randrange(len(value))
        return [*value[:index], _changed(rng, value[index]), *value[index + 1 :]]
    return rng.choice((None, True, -1, 0, 1e300, float("nan"), 10**30, "", "x", [], {}, [[]], {"a": None}))


def _flags(rng: random.Random, made: Case) -> list[str]:
    words: list[str] = []
    for _ in range(rng.randint(0, 4)):
        flag = rng.choice(FLAGS)
        value = _number_or_odd(rng)
        if flag == "--set":
            value = f"{rng.choice(KEYS)}{rng.choice(('=', '=', '=', '', ':'))}{value}"
        elif flag == "--strategy" and rng.random() < 0.7:
            value = rng.choice(STRATEGIES)
        elif flag == "--config":
            value = f"{len(made.files)}.yaml"
            made.files[value] = _configuration(rng)
        words += [flag, value] if rng.random() < 0.97 else [flag]
    return words


def _configuration(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(200))
    lines: list[str] = []
    for _ in range(rng.randint(0, 6)):
        section, dot, name = rng.choice(KEYS).partition(".")
        value = _number_or_odd(rng)
        lines.append(f"{section}: {{{name}: {value}}}" if dot else f"{section}: {value}")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _number_or_odd(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return str(rng.choice((0, 1, 2, 3, -1, 2**31, 2**63, 2**64, rng.randrange(100), 0.5)))
    value = rng.choice(ODD)
    if rng.random() < 0.2 and value:
        place = rng.randrange(len(value))
        value = value[:place] + rng.choice(ODD)[:50] + value[place:]
    return value


def _clean(made: Case) -> Case:
    """Keep to what a process can be given: no variable with a null byte, nothing that trains for long."""
    made.environ = {
        name: value for name, value in made.environ.items() if "\0" not in value and "=" not in name
    }
    return made


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
