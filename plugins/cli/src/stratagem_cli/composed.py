"""Configurations that Hydra has composed: `config.yaml` in a folder `.hydra`, whose values may refer to others."""

from __future__ import annotations

import os
from typing import Any

from stratagem.errors import ConfigError

_FOLDER = ".hydra"
_REFERENCE, _MISSING = "${", "???"


def resolved(path: str, content: dict[Any, Any]) -> dict[Any, Any]:
    """Return what a file says, with the values that its `${…}` refer to where Hydra has written it.

    Args:
        path: of the file.
        content: as in YAML.

    Raises:
        ConfigError: a value refers to nothing or is missing, or omegaconf, which resolves them, isn't installed.
    """
    if os.path.basename(os.path.dirname(os.path.abspath(path))) != _FOLDER or not _refers(content):
        return content
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        raise ConfigError(
            f"configuration {path!r} has values as ${{…}}, which omegaconf resolves: pip install omegaconf"
        ) from None
    try:
        found: dict[Any, Any] = OmegaConf.to_container(
            OmegaConf.create(content), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"{error.full_key} of configuration {path!r} can't be resolved: {said}") from error
    return found


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_refers, value.values()))
    if isinstance(value, list):
        return any(map(_refers, value))
    return isinstance(value, str) and (_REFERENCE in value or value == _MISSING)
