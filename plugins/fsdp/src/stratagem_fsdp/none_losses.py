"""Batches whose training_step returned None, where ranks compute a backward together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.errors import DataError
from stratagem_fsdp.torch_private import end_backward

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from stratagem import Collectives

WAIT_S = 5.0
"""How long others may take to come to the end of a micro-batch: all have gathered the module for it."""


def expect_none_everywhere(collectives: Collectives, batch: int, strategy: str) -> None:
    """Go on if every rank's micro-batch `batch` has no loss. Called by ranks that have none.

    Args:
        collectives: all ranks of the run.
        batch: number of the micro-batch, the same on all ranks.
        strategy: its name, for the message.

    Raises:
        DataError: others have a loss, and wait for this rank in their backward.
    """
    if not collectives.all_arrive(f"None in micro-batch {batch}", WAIT_S):
        raise DataError(
            f"training_step returned None on rank {collectives.rank} and not on all ranks: under {strategy} ranks "
            "compute a backward together. Return None on all of them, or, where a batch adds nothing, a loss that "
            "counts for nothing, as in 0.0 * self(x).sum()"
        )


def reduce_kept_gradients(root: FSDPModule) -> None:
    """Reduce the gradients that earlier backwards left unreduced, though there is no further loss. Collective."""
    end_backward(root)
