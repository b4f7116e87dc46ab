"""Reading YAML with numbers as people write them, and none that asks for more than a configuration needs."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable
from typing import Any

import yaml

from stratagem.errors import short

MOST_BYTES = 1 << 20
MOST_DEPTH = 100
MOST_NODES = 20_000
"""With what aliases stand for counted wherever they stand."""
MOST_DIGITS = 1000


class ExcessError(yaml.YAMLError):
    """YAML that is more, or less clear, than a configuration can be."""


class _Loader(yaml.SafeLoader):
    """Takes 1:4 and 0:00:30 for text, as YAML 1.2 does; in 1.1 they are 64 and 30, numbers to the base 60.

    A key given twice is refused, where YAML's own loader keeps the last.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MOST_DIGITS:
            raise _refused(
                f"it has a number of {len(node.value)} digits, more than {MOST_DIGITS}", node.start_mark
            )
        if ":" in node.value:
            return str(node.value)
        try:
            return super().construct_yaml_int(node)
        except ValueError:  # as 0b or 0x alone
            return str(node.value)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        if ":" in node.value:
            return str(node.value)
        try:
            return super().construct_yaml_float(node)
        except ValueError:
            return str(node.value)

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except (ValueError, OverflowError):  # as the 99th of a month
            return str(node.value)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _refused(f"it has the key {short(key.value)} twice in one section", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)


def read_yaml(text: str) -> Any:
    """Return what YAML text says, in plain Python types.

    Raises:
        yaml.YAMLError: it isn't YAML, asks for other types, gives a key twice, or is larger, nested deeper or
            multiplied further by aliases than a configuration is.
    """
    _refuse_excess(text)
    return yaml.load(text, _Loader)


def read_yaml_file(path: str) -> Any:
    """Return what a YAML file says.

    Raises:
        OSError: it can't be read, or is no regular file.
        UnicodeDecodeError: it isn't UTF-8.
        yaml.YAMLError: as `read_yaml`; or it is larger than `MOST_BYTES`.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")  # a pipe might never end, nor begin
    if found.st_size > MOST_BYTES:
        raise ExcessError(f"it has {found.st_size} bytes, more than {MOST_BYTES}")
    with open(path, encoding="utf-8") as file:
        return read_yaml(file.read())


def _refuse_excess(text: str) -> None:
    """Walk over the events alone, which takes neither recursion nor memory."""
    if len(text) > MOST_BYTES:
        raise ExcessError(f"it has {len(text)} characters, more than {MOST_BYTES}")
    sizes = [0]
    open_anchors: list[str | None] = [None]
    anchored: dict[str, int] = {}
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise _refused("it has an alias within what the alias stands for", event.start_mark)
            sizes[-1] += anchored.get(event.anchor or "", 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            open_anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), open_anchors.pop()
            if anchor is not None:
                anchored[anchor] = size
            sizes[-1] += size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
        if len(sizes) > MOST_DEPTH:
            raise _refused(f"it is nested deeper than {MOST_DEPTH} levels", event.start_mark)
        if sizes[-1] > MOST_NODES:
            raise _refused(
                f"it has more than {MOST_NODES} keys and values, aliases replaced", event.start_mark
            )


def _refused(what: str, mark: Any) -> ExcessError:
    return ExcessError(f"{what} (line {mark.line + 1}, column {mark.column + 1})")
