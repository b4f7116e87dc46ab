"""Tasks that jsrun started in a job of IBM Spectrum LSF."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from stratagem.errors import UsageError
from stratagem.sdk.environments import LauncherEnvironment, RankInfo, derived_port
from stratagem.sdk.processes import LOOPBACK
from stratagem_clusters.variables import first_integer, incomplete, integer, missing

_LOCAL_SIZES = ("JSM_NAMESPACE_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


class LSF(LauncherEnvironment):
    """One task of jsrun. MASTER_ADDR and MASTER_PORT win over what the job's variables say.

    The hosts come from LSB_MCPU_HOSTS ("host slots host slots ...") or, where that is missing, from
    the file LSB_DJOB_RANKFILE (one line per slot).
    """

    name: ClassVar[str] = "lsf"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        if missing(environ, "LSB_JOBID", "JSM_NAMESPACE_RANK"):
            return None
        return f"jsrun has set JSM_NAMESPACE_RANK={environ['JSM_NAMESPACE_RANK']} in an LSF job"

    @classmethod
    def detect_incomplete(cls, environ: Mapping[str, str]) -> str | None:
        return incomplete(environ, "jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "LSB_JOBID")

    def __init__(self, environ: Mapping[str, str]) -> None:
        rank = integer(environ, "JSM_NAMESPACE_RANK", "jsrun")
        world_size = integer(environ, "JSM_NAMESPACE_SIZE", "jsrun")
        local_world_size = first_integer(environ, _LOCAL_SIZES, "jsrun")
        if local_world_size < 1:
            raise UsageError(f"{_LOCAL_SIZES[0]} is {local_world_size}; it must be at least 1")
        address, node_rank = environ.get("MASTER_ADDR", LOOPBACK), 0
        if local_world_size < world_size:
            hosts = compute_hosts(_slots(environ))
            here = socket.gethostname().split(".")[0]
            names = [host.split(".")[0] for host in hosts]
            node_rank = names.index(here) if here in names else rank // local_world_size
            address = environ.get("MASTER_ADDR") or hosts[0]
        self.info = RankInfo(
            global_rank=rank,
            local_rank=integer(environ, "JSM_NAMESPACE_LOCAL_RANK", "jsrun"),
            node_rank=node_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            main_address=address,
            main_port=(
                integer(environ, "MASTER_PORT", "the job's script")
                if "MASTER_PORT" in environ
                else derived_port(integer(environ, "LSB_JOBID", "LSF"))
            ),
        )


def compute_hosts(slots: Mapping[str, int]) -> list[str]:
    """Return the hosts on which jsrun places tasks, in order.

    LSF lists the node that runs the job's script first. Where that is a launch node, it has one slot
    while the compute nodes have many, and jsrun places nothing there.

    Args:
        slots: number of slots of each host, in LSF's order; at least one host.
    """
    hosts = list(slots)
    is_launch_node = slots[hosts[0]] == 1 and any(count > 1 for count in slots.values())
    return hosts[1:] if is_launch_node else hosts


def _slots(environ: Mapping[str, str]) -> dict[str, int]:
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if words:
        if len(words) % 2 or not all(re.fullmatch(r"[0-9]{1,18}", count) for count in words[1::2]):
            raise UsageError(
                f"LSB_MCPU_HOSTS is {environ['LSB_MCPU_HOSTS']!r}, but LSF writes it as"
                " 'host slots host slots ...'; set MASTER_ADDR, and unset it"
            )
        return {host: int(count) for host, count in zip(words[::2], words[1::2], strict=True)}
    path = environ.get("LSB_DJOB_RANKFILE", "")
    try:
        lines = Path(path).read_text().split() if path else []
    except OSError as error:
        raise UsageError(f"LSB_DJOB_RANKFILE names {path!r}, which can't be read: {error}") from error
    if not lines:
        raise UsageError(
            "neither LSB_MCPU_HOSTS nor LSB_DJOB_RANKFILE lists a host, though LSF sets both for every job;"
            " start the processes with jsrun inside of a job"
        )
    return {host: lines.count(host) for host in dict.fromkeys(lines)}
