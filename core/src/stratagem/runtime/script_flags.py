"""A run's configuration, from a script's arguments and the flags of `stratagem run`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, replace
from typing import Any

from stratagem.config import RunConfig
from stratagem.errors import ConfigError, short
from stratagem.names.index import known_plugins

CONFIG_VARIABLE = "STRATAGEM_CONFIG"
"""Environment variable with the flags, as JSON: fields of `RunConfig` and their values."""


def run_config(owner: str, plugins: Any, **settings: Any) -> RunConfig:
    """Return the configuration of a run. Flags of `stratagem run` replace defaults.

    Args:
        owner: name of the class that got these arguments, such as "Runtime", for messages.
        plugins: objects with hook implementations, or names of installed extensions; a sequence, or a single one.
        settings: other fields of `RunConfig`. An accelerator of None means "auto".

    Raises:
        ConfigError: there is no such setting, it has another name now, or a flag contradicts one.
    """
    plugins = plugins if isinstance(plugins, (list, tuple)) else () if plugins is None else (plugins,)
    if settings.get("accelerator", "") is None:
        settings["accelerator"] = "auto"
    names = sorted({field.name for field in fields(RunConfig)} - {"extensions"})
    unknown = sorted(set(settings) - set(names))
    if unknown:
        if renamed := known_plugins().renamed({**settings, "plugins": plugins}):
            raise ConfigError(renamed)
        raise ConfigError(
            f"{owner} has no argument {unknown[0]!r}; it also takes those of RunConfig: {', '.join(names)}"
        )
    if not isinstance(plugins, (list, tuple)):
        plugins = () if plugins is None else (plugins,)
    return _with_flags(RunConfig(extensions=tuple(plugins), **settings))


def _with_flags(config: RunConfig) -> RunConfig:
    """Fill defaults in `config` from the flags that `stratagem run` was given.

    Raises:
        ConfigError: a flag contradicts a value in `config`, or the variable's value isn't one of `stratagem run`.
    """
    text = os.environ.get(CONFIG_VARIABLE)
    if not text:
        return config
    try:
        flags = json.loads(text)
    except (ValueError, RecursionError):
        flags = None
    if not isinstance(flags, dict) or flags.keys() - {field.name for field in fields(RunConfig)}:
        raise ConfigError(
            f"{CONFIG_VARIABLE} is {short(text)}, but `stratagem run` sets it to settings of a run as JSON: unset it"
        )
    defaults = RunConfig()
    changes: dict[str, Any] = {}
    for name, flag in flags.items():
        flag = tuple(flag) if isinstance(flag, list) and name != "devices" else flag
        mine = getattr(config, name)
        # 2 and "2" are the same devices.
        if mine not in (getattr(defaults, name), flag) and str(mine) != str(flag):
            raise ConfigError(
                f"--{name.replace('_', '-')} {flag} contradicts {name}={mine!r} in {sys.argv[0]}: leave out one"
            )
        changes[name] = flag
    return replace(config, **changes)
