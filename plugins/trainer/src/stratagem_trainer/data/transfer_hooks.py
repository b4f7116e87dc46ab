"""`TransferHooks`: hooks of modules and data modules that change or move batches."""

from __future__ import annotations

from typing import Any

import torch

from stratagem.sdk.tensors import to_device


class TransferHooks:
    """Hooks that a trainer calls with each batch of any stage, if they are overridden."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return the batch to move to the device. The argument is a batch of the loader."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch on `device`.

        Override it for batches of other types than tensors, lists, tuples, dicts and dataclasses.
        """
        return to_device(batch, device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return the batch that the step gets. The argument is on the device."""
        return batch


NAMES: tuple[str, ...] = tuple(name for name in vars(TransferHooks) if not name.startswith("_"))
