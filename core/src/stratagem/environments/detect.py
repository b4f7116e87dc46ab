"""Detects which of several environments this process is in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratagem.environments.base import Environment
from stratagem.errors import UsageError

LAUNCHER_VARIABLES: Mapping[str, int] = {
    "SLURM_STEP_NUM_TASKS": 2,
    "OMPI_COMM_WORLD_SIZE": 2,
    "MV2_COMM_WORLD_SIZE": 2,
    "PMI_SIZE": 2,
    "JSM_NAMESPACE_SIZE": 2,
    "HOROVOD_SIZE": 2,
    "WORLD_SIZE": 2,
    "RANK": 1,
    "LOCAL_RANK": 1,
    "NODE_RANK": 1,
    "GROUP_RANK": 1,
}
"""Variable that a launcher sets → the smallest value that shows that there are several processes."""


def detect_environment(
    classes: Iterable[type[Environment]], environ: Mapping[str, str]
) -> tuple[type[Environment], str]:
    """Choose the environment of the launcher that is nearest to this process.

    Looks only at variables, and makes no object. Not collective.

    Args:
        classes: the nearest launcher first. torchrun is nearer than Slurm, for example: it may run in a Slurm job,
            but no Slurm job runs in it.
        environ: the process's environment variables.

    Returns:
        The first class that recognises the process, and why, such as "torchrun has set TORCHELASTIC_RUN_ID and RANK".

    Raises:
        UsageError: no class recognises the process.
    """
    names = []
    for cls in classes:
        why = cls.detect(environ)
        if why is not None:
            return cls, why
        names.append(cls.name)
    raise UsageError(f"none of the environments {', '.join(names)} fits; name one with --environment")
