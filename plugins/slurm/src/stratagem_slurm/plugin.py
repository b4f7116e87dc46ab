"""What stratagem-slurm offers: the place `slurm`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The place `slurm`."""
    return [Component("place", "slurm", "stratagem_slurm.place:SlurmPlace", "jobs of a Slurm cluster")]
