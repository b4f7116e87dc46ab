"""Class names on command lines and in configurations: full paths as Lightning has them, and short names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from jsonargparse import get_loader, set_loader
from yaml import YAMLError

from stratagem_lightning.migration.lookup import where_is
from stratagem_lightning.migration.modules import CLASS_PATH
from stratagem_lightning.names import MODULES

_SHORT = {
    name: f"stratagem_lightning.{module}.{name}"
    for module in ("pytorch.callbacks", "pytorch.loggers", "pytorch.profilers", "pytorch.strategies")
    for name in MODULES[module]
}
_OPTION = re.compile(r"(--(?:[\w.]+\.)?(?:callbacks|logger|profiler|strategy)\+?)(?:=(\w+))?")


def in_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line whose class paths, and short names of a trainer's classes, refer to the classes here."""
    found: list[str] = []
    is_value = False
    for each in arguments:
        option = _OPTION.fullmatch(each)
        if option is not None and option[2] in _SHORT:
            each = f"{option[1]}={_SHORT[option[2]]}"
        elif is_value:
            each = _SHORT.get(each, each)
        is_value = option is not None and option[2] is None
        found.append(CLASS_PATH.sub(_path_here, each))
    return found


def read_configurations() -> None:
    """Accept Lightning's class paths in YAML configurations. A second call does nothing."""
    read = get_loader("yaml")
    if not hasattr(read, "reads_paths_of_lightning"):

        def loader(text: str) -> Any:
            return _mapped(read(text))

        loader.reads_paths_of_lightning = True  # type: ignore[attr-defined]  # functions take any attribute
        set_loader("yaml", loader, (YAMLError,))


def _mapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_mapped(each) for each in value]
    if not isinstance(value, dict):
        return value
    mapped = {key: _mapped(each) for key, each in value.items()}
    path = mapped.get("class_path")
    if isinstance(path, str):
        mapped["class_path"] = _SHORT.get(path) or CLASS_PATH.sub(_path_here, path)
    return mapped


def _path_here(match: Any) -> str:
    return where_is(match.group()) or str(match.group())
