"""The number of machines that take part: a number, or a minimum and a maximum, such as "1:4"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from math import gcd
from typing import TYPE_CHECKING, Union

from stratagem.errors import ConfigError, short

if TYPE_CHECKING:
    from stratagem.config import RunConfig
    from stratagem.launchers.base import LaunchPlan

_BACKENDS = ("c10d", "etcd", "etcd-v2", "static")

NodeCount = Union[int, str]
"""2, "2", or "1:4"."""


@dataclass(frozen=True)
class Nodes:
    """The smallest number of machines with which a run continues, and the largest number that it uses."""

    min: int
    max: int

    @property
    def is_elastic(self) -> bool:
        """Whether machines may come and go."""
        return self.min < self.max


def parse_num_nodes(asked: NodeCount) -> Nodes:
    """Read a number of machines.

    Raises:
        ConfigError: it isn't a number of machines.
    """
    parts = _text_of(asked).split(":")
    numbers = [int(part) for part in parts if re.fullmatch(r"\s*[0-9]{1,7}\s*", part)]
    if isinstance(asked, bool) or len(parts) > 2 or len(numbers) != len(parts):
        raise ConfigError(
            f"num_nodes={short(asked)} is not a number of machines: give one of at most 7 digits, or MIN:MAX as 1:4"
        )
    least, most = numbers[0], numbers[-1]
    if least < 1:
        raise ConfigError(f"num_nodes={asked!r} begins at {least} machines: at least 1 must take part")
    if most < least:
        raise ConfigError(
            f"num_nodes={asked!r} has a minimum that is larger than its maximum: write the smaller number first, "
            f"as {most}:{least}"
        )
    return Nodes(least, most)


def node_unit(nodes: Nodes, rank_unit: int, processes_per_node: int) -> int:
    """Return how many machines must join or leave a run at a time, if the number of ranks must be a multiple.

    Args:
        nodes: the minimum and the maximum.
        rank_unit: the number of ranks must be a multiple of this.
        processes_per_node: ranks on each machine.

    Raises:
        ConfigError: the minimum or the maximum isn't a multiple of the result.
    """
    unit = rank_unit // gcd(rank_unit, processes_per_node)
    if nodes.min % unit or nodes.max % unit:
        fitting = [max(1, each // unit) * unit for each in (nodes.min, nodes.max)]
        raise ConfigError(
            f"num_nodes={nodes.min}:{nodes.max} with {processes_per_node} "
            f"process{'es' * (processes_per_node > 1)} on each machine: the strategy needs a multiple of {rank_unit} "
            f"processes, so both numbers must be multiples of {unit}, as in {fitting[0]}:{max(fitting[1], 2 * unit)}"
        )
    return unit


def node_count(text: str) -> NodeCount:
    """Check a number of machines that is a text, and return it as `RunConfig` has it.

    Raises:
        ConfigError: it isn't a number of machines.
    """
    parse_num_nodes(text)
    return int(text) if text.strip().isdecimal() else text


def refuse_unused_rendezvous(config: RunConfig, plan: LaunchPlan, is_launched: bool) -> None:
    """Refuse settings of a rendezvous if a run has none, or if the rendezvous's library is missing.

    Args:
        config: the run's configuration.
        plan: the plan that was made from it.
        is_launched: whether another launcher has made the processes.

    Raises:
        ConfigError: says which setting to leave out, or what to install.
    """
    if is_launched or plan.num_nodes == 1:
        asked = {
            "node_rank": config.node_rank or None,
            "rdzv_endpoint": config.rdzv_endpoint,
            "rdzv_backend": None if config.rdzv_backend == "c10d" else config.rdzv_backend,
            "rdzv_conf": config.rdzv_conf,
        }
        given = [f"{name}={value!r}" for name, value in asked.items() if value is not None]
        if given:
            why = "another launcher has made the processes" if is_launched else "this run has one node"
            raise ConfigError(
                f"{', '.join(given)}: {why}, so that there is no rendezvous: leave it out, or set num_nodes "
                "(--num-nodes) to how many machines there are"
            )
        return
    if config.node_rank is not None and config.node_rank >= plan.num_nodes:
        raise ConfigError(
            f"node_rank={config.node_rank} is beyond num_nodes={config.num_nodes}: nodes are numbered from 0 to "
            f"{plan.num_nodes - 1}"
        )
    host, colon, port = (plan.rdzv_endpoint or "").rpartition(":")
    if colon and (not host.strip(" :") or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535):
        raise ConfigError(
            f"rdzv_endpoint={short(plan.rdzv_endpoint)} can't be understood: give HOST:PORT, with a port up to 65535"
        )
    if plan.rdzv_backend not in _BACKENDS:
        raise ConfigError(f"rdzv_backend={short(plan.rdzv_backend)} must be one of {', '.join(_BACKENDS)}")
    if plan.rdzv_backend.startswith("etcd") and find_spec("etcd") is None:
        raise ConfigError(
            f"rdzv_backend={plan.rdzv_backend!r} needs a client that isn't installed: pip install python-etcd, "
            "or use c10d"
        )


def _text_of(asked: NodeCount) -> str:
    try:
        return str(asked)
    except ValueError:  # more digits than Python prints
        return ""


def parse_rdzv_conf(text: str | None) -> dict[str, str]:
    """Read "KEY=VALUE,KEY=VALUE": settings of the rendezvous, by torch's names.

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
