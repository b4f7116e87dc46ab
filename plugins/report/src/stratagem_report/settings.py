"""Reads a run's settings from its `config.yaml`, which `stratagem fit` and `Trainer` write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import yaml
from stratagem_cli.yaml_text import read_yaml_file

MOST = 500
"""Maximum number of settings to show."""
LONGEST = 200
"""Maximum number of characters of a value."""


def read_settings(path: str) -> dict[str, str]:
    """Return setting → value, such as "trainer.max_epochs" → "3".

    Args:
        path: of a `config.yaml`. If it doesn't exist, or can't be read, there are no settings.
    """
    try:
        return dict(islice(_flat(read_yaml_file(path), ""), MOST))
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, value) of all settings that have a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif name and value is not None and value != []:
        if isinstance(value, list):
            value = ", ".join("…" if isinstance(each, (dict, list)) else str(each) for each in value[:MOST])
        text = "true" if value is True else "false" if value is False else str(value)
        yield name, text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
