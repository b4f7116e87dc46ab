"""`summarize`: a table of a module's layers and parameters, as in `lightning.pytorch.utilities.model_summary`."""

from __future__ import annotations

from typing import Any

from stratagem_trainer.callbacks.model_summary import LayerSummary
from stratagem_trainer.callbacks.model_summary import summarize as layers_of
from torch import nn


class ModelSummary:
    """A table of a module's layers. `str(summary)` is its text.

    Args:
        model: the module.
        max_depth: number of levels of submodules; -1 is all.
    """

    def __init__(self, model: nn.Module, max_depth: int = 1) -> None:
        self._model, self._max_depth = model, max_depth
        self._total, *self._layers = layers_of(model, max_depth)

    @property
    def max_depth(self) -> int:
        """Number of levels of submodules."""
        return self._max_depth

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers."""
        return [each.name for each in self._layers]

    @property
    def layer_types(self) -> list[str]:
        """Classes of the layers."""
        return [each.kind for each in self._layers]

    @property
    def param_nums(self) -> list[int]:
        """Number of parameters of each layer."""
        return [each.parameters for each in self._layers]

    @property
    def total_parameters(self) -> int:
        """Number of parameters of the module."""
        return self._total.parameters

    @property
    def trainable_parameters(self) -> int:
        """Number of parameters that require gradients."""
        return self._total.trainable

    @property
    def total_layer_params(self) -> int:
        """Number of parameters of the module's outermost layers."""
        return self._total.parameters

    @property
    def model_size(self) -> float:
        """Size of the parameters in MB (10^6 bytes)."""
        return sum(each.numel() * each.element_size() for each in self._model.parameters()) / 1e6

    @property
    def layers(self) -> list[LayerSummary]:
        """The rows of the table."""
        return list(self._layers)

    def __str__(self) -> str:
        rows: list[tuple[Any, ...]] = [("", "Name", "Type", "Params")]
        rows += [(n, each.name, each.kind, each.parameters) for n, each in enumerate(self._layers)]
        widths = [max(len(str(row[column])) for row in rows) for column in range(4)]
        lines = [
            "  ".join(str(value).ljust(width) for value, width in zip(row, widths)).rstrip() for row in rows
        ]
        lines += [
            f"{self.trainable_parameters:,} trainable parameters",
            f"{self.total_parameters - self.trainable_parameters:,} others",
            f"{self.total_parameters:,} in all, {self.model_size:,.3f} MB",
        ]
        return "\n".join(lines)


def summarize(lightning_module: nn.Module, max_depth: int = 1) -> ModelSummary:
    """Return the table of a module's layers.

    Args:
        lightning_module: the module.
        max_depth: number of levels of submodules; -1 is all.
    """
    return ModelSummary(lightning_module, max_depth)
