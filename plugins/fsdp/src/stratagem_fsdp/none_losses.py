"""Handles batches whose training_step returned None, although the ranks' backward is collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.errors import DataError
from stratagem_fsdp.torch_private import end_backward

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from stratagem import Collectives

WAIT_S = 5.0
"""How long other ranks may take to finish a micro-batch: all have gathered the module for it."""


def expect_none_everywhere(collectives: Collectives, batch: int, strategy: str) -> None:
    """Check that every rank's micro-batch `batch` has no loss. Ranks without a loss call it.

    Args:
        collectives: all ranks of the run.
        batch: number of the micro-batch, the same on all ranks.
        strategy: its name, for the message.

    Raises:
        DataError: other ranks have a loss, and their backward waits for this rank.
    """
    if not collectives.all_arrive(f"None in micro-batch {batch}", WAIT_S):
        raise DataError(
            f"training_step returned None on rank {collectives.rank} and not on all ranks: under {strategy} ranks "
            "compute a backward together. Return None on all of them, or, where a batch adds nothing, a loss that "
            "counts for nothing, as in 0.0 * self(x).sum()"
        )


def reduce_kept_gradients(root: FSDPModule) -> None:
    """Reduce gradients that earlier backwards left unreduced, without a further loss. Collective."""
    end_backward(root)
