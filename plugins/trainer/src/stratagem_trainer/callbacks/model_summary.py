"""`ModelSummary`: print a module's layers, parameters, FLOPs and memory when a fit starts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from stratagem.errors import bytes_text
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import check_count

if TYPE_CHECKING:
    from torch import nn

    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class LayerSummary(NamedTuple):
    """One line of the table."""

    name: str
    kind: str
    parameters: int
    """Number of parameters of the whole module, even if ranks share it."""
    trainable: int
    flops: int | None
    """FLOPs of a forward with `Module.example_input_array`; None if they weren't counted."""


class ModelSummary(Callback):
    """Print a table of submodules and their parameters on rank 0, and how much memory a rank needs for them.

    If the module has an `example_input_array`, torch's FlopCounterMode counts the FLOPs of its forward, without
    computing it. The bytes are those of parameters and buffers on a rank, without gradients and optimizer states.

    Args:
        max_depth: levels of submodules: 0 prints only totals, -1 all levels.
    """

    is_restored_in_evaluations = False

    def __init__(self, max_depth: int = 1) -> None:
        check_count("ModelSummary", "max_depth", max_depth, -1)
        self.max_depth = max_depth
        self.layers: list[LayerSummary] = []
        """Layers of the module, after a fit has started. The first one is the module itself, named ""."""
        self.bytes_per_rank: list[int] = []
        """Bytes of parameters and buffers on each rank."""

    def on_fit_start(self, trainer: TrainerView, module: Module) -> None:
        from stratagem_trainer.callbacks.model_size import held_bytes, layers_of

        held = held_bytes(trainer.prepared.model_tensors().values())
        self.bytes_per_rank = trainer.collectives.gather_objects(held)
        self.layers = layers_of(
            module, self.max_depth
        )  # on all ranks, as a layer's forward may be collective
        if trainer.is_main:
            print("\n".join(self.lines()), file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"bytes_per_rank": self.bytes_per_rank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bytes_per_rank = state["bytes_per_rank"]

    def lines(self) -> list[str]:
        """Return the table as text."""
        total, *rest = self.layers
        has_flops = total.flops is not None
        table = [("layer", "kind", "parameters", "flops" if has_flops else "")]
        table += [
            (each.name, each.kind, _short(each.parameters), _short(each.flops) if has_flops else "")
            for each in rest
        ]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines = ["model", *(_line(row, widths) for row in table)] if rest else ["model"]
        frozen = total.parameters - total.trainable
        lines.append(
            f"  {_short(total.parameters)} parameters, {_short(total.trainable)} trained"
            + (f", {_short(frozen)} frozen" if frozen else "")
            + (f"; {_short(total.flops)} FLOPs in a forward" if has_flops else "")
        )
        least, most = min(self.bytes_per_rank), max(self.bytes_per_rank)
        amount = bytes_text(most) if least == most else f"{bytes_text(least)} to {bytes_text(most)}"
        ranks = f" on each of {len(self.bytes_per_rank)} ranks" if len(self.bytes_per_rank) > 1 else ""
        lines.append(f"  {amount} of parameters and buffers{ranks}")
        return lines


class RichModelSummary(ModelSummary):
    """`ModelSummary` under another name of Lightning's."""


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    name, kind, parameters, flops = (
        text.ljust(width) if column < 2 else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths))
    )
    return f"  {name}  {kind}  {parameters}  {flops}".rstrip()


def _short(count: int | None) -> str:
    if count is None:
        return "-"
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def summarize(module: nn.Module, max_depth: int = 1) -> list[LayerSummary]:
    """Return the table of a module without running a trainer."""
    from stratagem_trainer.callbacks.model_size import layers_of

    found: list[Any] = layers_of(module, max_depth)
    return found
