"""`TransferHooks`: what a batch passes through on its way to the device, of modules and data modules."""

from __future__ import annotations

from typing import Any

import torch

from stratagem.sdk.tensors import to_device


class TransferHooks:
    """Methods that a trainer calls with each batch of any stage, once they are overridden."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return the batch that is to be moved to the device; every stage's, as its loader gave it."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch on `device`.

        Override it for batches of other types than tensors, lists, tuples, dicts and dataclasses.
        """
        return to_device(batch, device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return the batch that the step gets; it is on the device."""
        return batch


NAMES: tuple[str, ...] = tuple(name for name in vars(TransferHooks) if not name.startswith("_"))
