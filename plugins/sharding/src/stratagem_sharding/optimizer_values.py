"""Share the optimizer state that isn't tensors between ranks that step different parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem import Collectives

__all__ = ["share_values"]


def share_values(described: Sequence[dict[str, Any]], collectives: Collectives) -> None:
    """Add the values that only other ranks have, since only rank 0's descriptions are written. Collective.

    Args:
        described: the result of `describe_optimizer` for each optimizer, changed in place.
        collectives: of all ranks.
    """
    everyone = collectives.gather_objects([each["values"] for each in described])
    for index, each in enumerate(described):
        each["values"] = {name: others for values in everyone for name, others in values[index].items()}
