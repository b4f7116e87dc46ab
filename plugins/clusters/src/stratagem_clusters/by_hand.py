"""Processes started by hand, with some of PyTorch's variables: what follows from them, and what is refused.

The reference's start by hand is one of two. On each node one command per process, with NODE_RANK,
LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: `completed`. Or one command per node, without
LOCAL_RANK: `complete_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from stratagem.errors import UsageError
from stratagem.sdk.environments import RequestedSize
from stratagem.sdk.processes import LOOPBACK
from stratagem_clusters.variables import integer

if TYPE_CHECKING:
    from stratagem import LaunchPlan

LAUNCHER = "a launcher of torch.distributed"
THIS_HOST = ("localhost", LOOPBACK, "::1")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
_NODE_RANKS = ("NODE_RANK", "GROUP_RANK")
_NAMES = ("RANK", "LOCAL_RANK", *_NODE_RANKS, "WORLD_SIZE", *LOCAL_SIZES, "MASTER_ADDR", "MASTER_PORT")
_INSTEAD = (
    "start the processes with torchrun, or for a run of this process alone unset them or choose "
    "--environment single"
)


def given_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of PyTorch's variables that are set and not empty."""
    return {name: value for name in _NAMES if (value := environ.get(name, "").strip())}


def is_one_of_several(environ: Mapping[str, str]) -> bool:
    """Whether the variables are those of one process among several, complete or not.

    Left over from a container or a notebook are MASTER_ADDR and MASTER_PORT without a rank, RANK=0 alone,
    and ranks of 0 together with WORLD_SIZE=1: nothing is lost if such a process trains alone.
    """
    given = given_variables(environ)
    ranks = {given[name] for name in ("RANK", "LOCAL_RANK") if name in given}
    if not ranks or (given.get("WORLD_SIZE") == "1" and ranks == {"0"}):
        return False
    has_more = not {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}.isdisjoint(given)
    return "LOCAL_RANK" in given or ranks != {"0"} or has_more


def completed(environ: Mapping[str, str], size: RequestedSize) -> dict[str, str]:
    """Return `environ` with what follows for a process that was started by hand.

    RANK follows from NODE_RANK (or GROUP_RANK), LOCAL_RANK and the number of processes per node, which is
    LOCAL_WORLD_SIZE, or what the run asks for, or WORLD_SIZE on a single node; WORLD_SIZE from that and
    the number of nodes; MASTER_ADDR is needed for several nodes, MASTER_PORT for several processes.

    Args:
        environ: the process's environment variables.
        size: what the run asks for.

    Raises:
        UsageError: something is missing that doesn't follow, or the variables contradict each other.
    """
    given = given_variables(environ)
    rank, local_rank = _number(environ, "RANK"), _number(environ, "LOCAL_RANK")
    node_rank, world_size = _number(environ, *_NODE_RANKS), _number(environ, "WORLD_SIZE")
    local_size = _number(environ, *LOCAL_SIZES)
    if local_size is None:
        local_size = _local_size(given, size)
    if world_size is None and local_size is not None and size.num_nodes is not None:
        world_size = local_size * size.num_nodes
    is_one_node = world_size is not None and local_size == world_size
    if is_one_node and node_rank is None:
        node_rank = 0
    lacking = []
    if rank is None:
        parts = {"LOCAL_RANK": local_rank, "NODE_RANK": node_rank, "LOCAL_WORLD_SIZE": local_size}
        lacking += [name for name, value in parts.items() if value is None]
    if world_size is None:
        lacking.append("WORLD_SIZE")
    if "MASTER_ADDR" not in given and not is_one_node:
        lacking.append("MASTER_ADDR")
    if "MASTER_PORT" not in given and world_size != 1:
        lacking.append("MASTER_PORT")
    if lacking:
        isn_t, them = ("isn't", "it") if len(lacking) == 1 else ("aren't", "them")
        raise UsageError(
            f"{listed(given)} are set, as for one of several processes, but {', '.join(lacking)} {isn_t} set: set "
            f"{them} as well, or {_INSTEAD}"
        )
    derived = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": local_size, "RANK": rank}
    if rank is None and local_rank is not None and node_rank is not None and local_size is not None:
        derived["RANK"] = rank = node_rank * local_size + local_rank
        if world_size is not None and (rank >= world_size or local_rank >= local_size):
            raise UsageError(
                f"{listed(given)} contradict each other: with {local_size} processes per node this is process "
                f"{local_rank} of node {node_rank}, rank {rank} among {world_size}; correct them, or {_INSTEAD}"
            )
    known = {name: str(value) for name, value in derived.items() if value is not None}
    return {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": "0", **known, **_nonempty(environ)}


def complete_plan(given: Mapping[str, str], plan: LaunchPlan) -> LaunchPlan:
    """Return `plan` with this node's rank and where the nodes meet, for one command per node.

    Args:
        given: what `given_variables` returned.
        plan: of a launch by Stratagem; what it says already wins.

    Raises:
        UsageError: the variables are those of another number of processes or nodes, or the port is missing.
    """
    node_rank, world_size = _number(given, *_NODE_RANKS), _number(given, "WORLD_SIZE")
    here = plan.processes_per_node
    starts = f"this run starts {here} on each of {plan.num_nodes} nodes (devices, num_nodes)"
    if world_size not in (None, plan.world_size) and not plan.is_elastic and (world_size != 1 or node_rank):
        raise UsageError(
            f"{listed(given)} say that there are {world_size} processes, but {starts}, {plan.world_size} in all: "
            f"correct one of them, or {_INSTEAD}"
        )
    local_size = _number(given, *LOCAL_SIZES)
    if local_size not in (None, 1, here):
        raise UsageError(
            f"{listed(given)} say that there are {local_size} processes per node, but {starts}: correct one of "
            f"them, or {_INSTEAD}"
        )
    if node_rank is not None and node_rank >= plan.num_nodes:
        raise UsageError(
            f"{listed(given)} are those of node {node_rank}, but {starts}: set num_nodes (--num-nodes) to how many "
            f"there are, or {_INSTEAD}"
        )
    address, port = given.get("MASTER_ADDR"), given.get("MASTER_PORT")
    if plan.num_nodes == 1:
        if node_rank is not None and address is not None and world_size is None:
            raise UsageError(
                f"{listed(given)} are those of one of several nodes, but WORLD_SIZE isn't set, and {starts}: set "
                f"num_nodes (--num-nodes) to how many there are, or {_INSTEAD}"
            )
        return plan
    endpoint = plan.rdzv_endpoint
    if endpoint is None and address is not None:
        if port is None:
            raise UsageError(
                f"{listed(given)} are set, but MASTER_PORT isn't: set it to a free port of {address}, or give "
                "rdzv_endpoint (--rdzv-endpoint HOST:PORT)"
            )
        endpoint = f"{address}:{integer(given, 'MASTER_PORT', LAUNCHER)}"
    return replace(
        plan, rdzv_endpoint=endpoint, node_rank=node_rank if plan.node_rank is None else plan.node_rank
    )


def node_rank_of(environ: Mapping[str, str]) -> int | None:
    """Return this node's rank as it was set by hand; None where it wasn't."""
    return _number(environ, *_NODE_RANKS)


def _local_size(given: Mapping[str, str], size: RequestedSize) -> int | None:
    world_size = _number(given, "WORLD_SIZE")
    if world_size == 1:
        return 1
    is_here = given.get("MASTER_ADDR", LOOPBACK) in THIS_HOST
    starts_each = "LOCAL_RANK" in given or not {*_NODE_RANKS}.isdisjoint(given)
    if starts_each or not is_here:
        if size.processes_per_node is not None:
            return size.processes_per_node
        if (
            world_size is not None
            and size.num_nodes
            and size.num_nodes > 1
            and world_size % size.num_nodes == 0
        ):
            return world_size // size.num_nodes
    if not _number(given, *_NODE_RANKS) and ("LOCAL_RANK" in given or is_here):
        return world_size
    return None


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    present = [name for name in names if environ.get(name, "").strip()]
    return integer(environ, present[0], LAUNCHER) if present else None


def _nonempty(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in _NAMES or value.strip()}


def listed(given: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())
