"""Reading YAML with numbers as people write them."""

from __future__ import annotations

from typing import IO, Any

import yaml


class _Loader(yaml.SafeLoader):
    """Takes 1:4 and 0:00:30 for text, as YAML 1.2 does; in 1.1 they are 64 and 30, numbers to the base 60."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        return str(node.value) if ":" in node.value else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        return str(node.value) if ":" in node.value else super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def read_yaml(source: str | IO[str]) -> Any:
    """Return what YAML text says, in plain Python types.

    Raises:
        yaml.YAMLError: it isn't YAML, or asks for other types.
    """
    return yaml.load(source, _Loader)
