"""A `LightningModule` in a user's own training loop with `Fabric`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.module.module import Module

if TYPE_CHECKING:
    from stratagem_lightning.fabric_object import Fabric


class FabricAsTrainer:
    """`self.trainer` of a module that Fabric has set up, with the attributes that Fabric can provide.

    Args:
        fabric: has set the module up.
        optimizers: of the module, as `Fabric.setup` returned them.
    """

    is_live = has_state = True
    current_epoch = global_step = 0

    def __init__(self, fabric: Fabric, optimizers: Sequence[Any]) -> None:
        self.fabric, self._optimizers = fabric, list(optimizers)
        self.metrics = FabricMetrics(fabric)

    def manual_optimizers(self) -> Any:
        """Return the module's optimizer, or a list if it has several."""
        return self._optimizers[0] if len(self._optimizers) == 1 else self._optimizers

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.fabric, name)
        except AttributeError as error:
            raise AttributeError(
                f"self.trainer.{name} isn't there on Fabric: ask for it where self.fabric is None"
            ) from error


class FabricMetrics:
    """The destination of a module's `log` calls under Fabric: all its loggers, at once."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    def log(self, name: str, value: Any, prog_bar: bool, logger: bool, *others: Any) -> None:
        """Log a value, unless `logger` is False. Fabric has no progress bar, and knows no epochs."""
        if logger:
            self._fabric.log(name, value)


class InFabric(Module):
    """The methods of a module that call `Fabric`'s if Fabric has set the module up."""

    @property
    def fabric(self) -> Fabric | None:
        """The Fabric that has set this module up; None under a trainer, and before setup."""
        trainer = self.trainer if self.has_trainer else None
        return trainer.fabric if isinstance(trainer, FabricAsTrainer) else None

    def run_on(self, fabric: Fabric, optimizers: Sequence[Any]) -> None:
        """Set the Fabric that has set this module up, and the optimizers that its `setup` returned."""
        self.__dict__["_trainer"] = FabricAsTrainer(fabric, optimizers)

    def manual_backward(self, loss: torch.Tensor, **how: Any) -> None:
        """Run backward through the strategy. Collective."""
        if self.fabric is None:
            super().manual_backward(loss, **how)
        else:
            self.fabric.backward(loss, model=self, **how)

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of `optimizer`: by value if the algorithm is "value", otherwise by norm."""
        if self.fabric is None:
            super().clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val is not None:
            by_value = gradient_clip_algorithm == "value"
            limits = (gradient_clip_val, None) if by_value else (None, gradient_clip_val)
            self.fabric.clip_gradients(self, optimizer, *limits)
