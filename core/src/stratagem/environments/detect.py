"""Which of several environments this process is in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratagem.environments.base import Environment
from stratagem.errors import UsageError


def detect_environment(
    classes: Iterable[type[Environment]], environ: Mapping[str, str]
) -> tuple[type[Environment], str]:
    """Choose the environment of the launcher that is nearest to this process.

    Looks only at variables and makes no object. Each process finds out for itself.

    Args:
        classes: the nearest launcher first, as torchrun before Slurm: it may run in a Slurm job, but
            no Slurm job in it.
        environ: the process's environment variables.

    Returns:
        The first class that recognises the process, and why, as "torchrun has set TORCHELASTIC_RUN_ID
        and RANK".

    Raises:
        UsageError: none does.
    """
    names = []
    for cls in classes:
        why = cls.detect(environ)
        if why is not None:
            return cls, why
        names.append(cls.name)
    raise UsageError(f"none of the environments {', '.join(names)} fits; name one with --environment")
