"""Which of the known environments this process is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratagem.environment.base import Environment
from stratagem.errors import UsageError

ORDER: tuple[str, ...] = ("torchelastic", "kubeflow", "lsf", "mpi", "slurm", "env", "single")
"""From the nearest launcher to none: what starts processes inside of another's job comes before it.

jsrun comes before MPI because it sets Open MPI's variables as well. An environment that isn't
listed, from another distribution, comes before them all: it looks for something special.
"""


def detect_environment(
    classes: Sequence[type[Environment]], environ: Mapping[str, str]
) -> tuple[type[Environment], str]:
    """Choose the environment of the launcher that is nearest to this process.

    Looks only at variables and makes no object. Each process finds out for itself.

    Args:
        classes: the installed environments, in any order.
        environ: the process's environment variables.

    Returns:
        The class, and why, as "torchrun has set TORCHELASTIC_RUN_ID and RANK".

    Raises:
        UsageError: two environments that aren't in `ORDER` claim the process, or none does.
    """
    found = [(cls, why) for cls in classes if (why := cls.detect(environ)) is not None]
    if not found:
        known = ", ".join(sorted(cls.name for cls in classes))
        raise UsageError(f"none of the installed environments ({known}) fits; name one with --environment")
    others = [(cls, why) for cls, why in found if cls.name not in ORDER]
    if len(others) > 1:
        claims = "; ".join(f"{cls.name}: {why}" for cls, why in others)
        raise UsageError(f"several environments fit ({claims}); name one of them with --environment")
    return others[0] if others else min(found, key=lambda claim: ORDER.index(claim[0].name))
