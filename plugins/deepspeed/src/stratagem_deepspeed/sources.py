"""Reads the user's DeepSpeed configuration: a dict, a JSON file, or the file that an environment variable names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from stratagem import ConfigError
from stratagem_deepspeed import keys

VARIABLE = "STRATAGEM_DEEPSPEED_CONFIG"
"""Environment variable with the path of a JSON file, for runs without `config`."""
FORMER_VARIABLE = "PL_DEEPSPEED_CONFIG_PATH"


def given(config: str | os.PathLike[str] | Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Read and check the user's configuration.

    Returns:
        The configuration and its name in messages; {} and "" where there is none.

    Raises:
        ConfigError: the configuration can't be read, or has keys that can't be used.
    """
    if config is None:
        path = os.environ.get(VARIABLE)
        if not path and FORMER_VARIABLE in os.environ:
            raise ConfigError(
                f"{FORMER_VARIABLE}={os.environ[FORMER_VARIABLE]} is now called {VARIABLE}: set that one, and unset "
                "the other"
            )
        if not path:
            return {}, ""
        read, source = _read(path, f"{VARIABLE}={path}"), f"{path} ({VARIABLE})"
    elif isinstance(config, (str, os.PathLike)):
        path = os.fspath(config)
        read, source = _read(path, f"config={path!r}"), path
    elif isinstance(config, Mapping):
        read, source = deepcopy(dict(config)), "config"
    else:
        raise ConfigError(
            f"config={config!r} is a {type(config).__name__}: give a dict, or the path of a JSON file"
        )
    if "bfloat16" in read:
        read.setdefault("bf16", read.pop("bfloat16"))
    keys.check(read, source)
    return read, source


def _read(path: str, shown: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            read = json.load(file, object_pairs_hook=_without_duplicates)
    except OSError as error:
        raise ConfigError(f"{shown} can't be read: {error.strerror}: give the path of a JSON file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown} isn't text in UTF-8: give the path of a JSON file") from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{shown} isn't JSON: {error.msg} in line {error.lineno}, column {error.colno}: fix it there"
        ) from error
    except _DuplicateError as error:
        raise ConfigError(f"{shown} has the key {error} twice in one mapping: leave one out") from None
    if not isinstance(read, dict):
        raise ConfigError(
            f"{shown} holds a {type(read).__name__}: a configuration is a mapping of keys to values"
        )
    return read


class _DuplicateError(Exception):
    pass


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateError(repr(next(name for name in names if names.count(name) > 1)))
    return seen
