"""How many machines take part: a number, or the least and the most, as "1:4"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from stratagem.errors import ConfigError

NodeCount = Union[int, str]
"""2, "2", or "1:4"."""


@dataclass(frozen=True)
class Nodes:
    """The least machines that a run goes on with, and the most that it takes."""

    least: int
    most: int

    @property
    def vary(self) -> bool:
        """Whether machines may come and go."""
        return self.least < self.most


def nodes_of(asked: NodeCount) -> Nodes:
    """Read a number of machines.

    Raises:
        ConfigError: it is none.
    """
    parts = str(asked).split(":")
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if isinstance(asked, bool) or len(parts) > 2 or len(numbers) != len(parts):
        raise ConfigError(f"num_nodes={asked!r} is no number of machines: give one, or MIN:MAX as 1:4")
    least, most = numbers[0], numbers[-1]
    if least < 1:
        raise ConfigError(f"num_nodes={asked!r} begins at {least} machines: at least 1 must take part")
    if most < least:
        raise ConfigError(
            f"num_nodes={asked!r} has its least after its most: write the smaller number first, as {most}:{least}"
        )
    return Nodes(least, most)


def node_count(text: str) -> NodeCount:
    """Check a number of machines that was written somewhere, and return it as `RunConfig` has it.

    Raises:
        ConfigError: it is none.
    """
    nodes_of(text)
    return int(text) if text.isdecimal() else text


def meeting_settings(text: str | None) -> dict[str, str]:
    """Read "KEY=VALUE,KEY=VALUE", settings of the meeting place in torch's words.

    Raises:
        ConfigError: it can't be read.
    """
    settings: dict[str, str] = {}
    for entry in (text or "").split(","):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not entry.strip():
            continue
        if not equals or not key or not value:
            raise ConfigError(
                f"rdzv_conf has {entry.strip()!r}: write KEY=VALUE,KEY=VALUE, as "
                "last_call_timeout=10,keep_alive_interval=2"
            )
        settings[key] = value
    return settings
