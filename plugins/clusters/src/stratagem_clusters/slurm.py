"""Tasks that srun started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from stratagem.errors import UsageError, short
from stratagem.sdk.environments import MOST_PROCESSES, LauncherEnvironment, RankInfo, derived_port
from stratagem.sdk.processes import LOOPBACK
from stratagem_clusters.variables import incomplete, integer, missing, text

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""From here on step numbers mean batch script, interactive shell and the like, not srun."""


class Slurm(LauncherEnvironment):
    """One task of a job step. MASTER_ADDR and MASTER_PORT win over what the step's variables say.

    Looks only at variables of the *step*, which srun sets. A batch script, or a shell that salloc started, has
    variables of the *job*, and a batch script also SLURM_PROCID and SLURM_NTASKS, although nothing has started the
    other tasks.
    """

    name: ClassVar[str] = "slurm"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        if missing(environ, "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"):
            return None
        step = environ["SLURM_STEP_ID"]
        if re.fullmatch(r"[0-9]{1,18}", step) and int(step) >= _FIRST_SPECIAL_STEP:
            return None
        # `srun --pty bash`: a person's shell, from which they start what they like. A batch job
        # submitted from there inherits these variables as well.
        if "SLURM_PTY_PORT" in environ and environ["SLURM_STEP_NUM_TASKS"] == "1":
            return None
        return f"srun has set SLURM_STEP_ID={step} and SLURM_PROCID={environ['SLURM_PROCID']}"

    @classmethod
    def detect_incomplete(cls, environ: Mapping[str, str]) -> str | None:
        if re.fullmatch(r"[0-9]{1,18}", environ.get("SLURM_STEP_ID", "")):
            if int(environ["SLURM_STEP_ID"]) >= _FIRST_SPECIAL_STEP:
                return None
        elif "SLURM_JOB_ID" in environ and "SLURM_STEP_NUM_TASKS" not in environ:
            return None  # a batch script, or a shell of salloc: one process, which may start others
        needed = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        return incomplete(environ, "srun", size, *needed)

    def __init__(self, environ: Mapping[str, str]) -> None:
        node_rank = integer(environ, "SLURM_NODEID", "srun")
        tasks_per_node = expand_counts(text(environ, "SLURM_STEP_TASKS_PER_NODE", "srun"))
        if node_rank >= len(tasks_per_node):
            raise UsageError(
                f"SLURM_NODEID is {node_rank}, but SLURM_STEP_TASKS_PER_NODE has {len(tasks_per_node)} nodes;"
                " one of them comes from another job step: start the processes with srun"
            )
        self.info = RankInfo(
            global_rank=integer(environ, "SLURM_PROCID", "srun"),
            local_rank=integer(environ, "SLURM_LOCALID", "srun"),
            node_rank=node_rank,
            world_size=integer(environ, "SLURM_STEP_NUM_TASKS", "srun"),
            local_world_size=tasks_per_node[node_rank],
            main_address=_main_address(environ, nodes=len(tasks_per_node)),
            main_port=(
                integer(environ, "MASTER_PORT", "the job's script")
                if "MASTER_PORT" in environ
                else derived_port(
                    integer(environ, "SLURM_JOB_ID", "srun"), integer(environ, "SLURM_STEP_ID", "srun")
                )
            ),
        )


def expand_counts(counts: str) -> list[int]:
    """Return the number of tasks on each node from "2(x3),1": [2, 2, 2, 1].

    Raises:
        UsageError: `counts` isn't written so.
    """
    expanded: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?", part.strip())
        if match is None or len(expanded) + int(match[2] or 1) > MOST_PROCESSES:
            raise UsageError(
                f"SLURM_STEP_TASKS_PER_NODE is {short(counts)}, but srun writes it as '2(x3),1', for at most "
                f"{MOST_PROCESSES} nodes; unset it or choose another --environment"
            )
        expanded += [int(match[1])] * int(match[2] or 1)
    return expanded


def first_node(nodelist: str) -> str:
    """Return the first host of a list such as "n[1-3,7],gpu09" or "rack[1-2]-n[01-16]".

    Raises:
        UsageError: there is none, or a bracket is left open.
    """
    first = re.match(r"(?:[^,\[\]\s]|\[[^\[\]]+\])+", nodelist.strip())
    if first is None or nodelist.count("[") != nodelist.count("]"):
        raise UsageError(
            f"the list of nodes {nodelist!r} can't be read; srun writes it as 'n[1-3,7]'. Set MASTER_ADDR"
            " to the host of rank 0"
        )
    # The first of a bracket's ranges, as written: "[01-16]" begins with "01".
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def _main_address(environ: Mapping[str, str], nodes: int) -> str:
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    if nodes == 1:
        return LOOPBACK
    return first_node(text(environ, "SLURM_STEP_NODELIST", "srun"))
