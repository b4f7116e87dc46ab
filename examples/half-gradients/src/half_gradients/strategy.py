"""`HalfGradients`: a replica per device, gradients averaged in 16 bits."""

from __future__ import annotations

from typing import Any

import torch
from stratagem_sharding.buckets import broadcast_coalesced, gradients_of_any
from stratagem_sharding.replicated import ReplicatedPrepared
from stratagem_sharding.synchronised import SynchronisedPrepared

from stratagem import CheckpointReader, Prepared, ProcessGroupStrategy, SetupRequest, hookimpl


class HalfGradients(ProcessGroupStrategy):
    """A process per device, in one process group. Takes what `stratagem.ProcessGroupStrategy` takes.

    It is configuration: what runs lives in the objects that its hooks answer with.
    """

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with what the loop calls per step."""
        return HalfGradientsPrepared(request)


class HalfGradientsPrepared(SynchronisedPrepared, ReplicatedPrepared):
    """What the loop calls per step: override what you do otherwise, and leave the rest.

    `SynchronisedPrepared` calls `reduce` after each backward but those within `no_sync`, and completes or refuses
    gradients that the user's code made in another way.
    """

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request)
        self.collectives = request.collectives
        self.residuals: dict[str, torch.Tensor] = {}
        broadcast_coalesced((*self.original_module.parameters(), *self.original_module.buffers()))
        self.track(request)

    def reduce(self) -> None:
        """Average the gradients over the ranks: one collective for all of a dtype. Collective."""
        everything = dict(self.original_module.named_parameters())
        has_one = [parameter.grad is not None for parameter in everything.values()]
        gradients_of_any(list(everything.values()), has_one, self.device)
        named = [(name, p) for name, p in everything.items() if p.grad is not None]
        # A precision that scales the loss scales the gradients, and changes the scale between steps.
        scale = float(self.precision.state_dict().get("scale", 1.0))
        for dtype in dict.fromkeys(p.grad.dtype for _, p in named if p.grad is not None):
            same = {name: p.grad for name, p in named if p.grad is not None and p.grad.dtype == dtype}
            for name, gradient in same.items():
                gradient += scale * self.residuals.get(name, 0)
            flat = torch.cat([gradient.reshape(-1) for gradient in same.values()])
            mean, rounded_off = self.mean(flat)
            sizes = [gradient.numel() for gradient in same.values()]
            for gradient, part in zip(same.values(), torch.split(mean, sizes)):
                gradient.copy_(part.view_as(gradient))
            if rounded_off is not None:
                for name, rest in zip(same, torch.split(rounded_off, sizes)):
                    self.residuals[name] = rest.view_as(same[name]) / scale
        self.note_reduced(everything.values())

    def mean(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the mean over the ranks of a vector, and what this rank didn't send. Collective.

        Whole numbers up to 2,048 are numbers of 16 bits, and so are their sums over the ranks: nothing is rounded
        off but what this rank knows of. Where some rank's vector isn't finite, nothing was sent, and the second is
        None.
        """
        ranks = self.collectives.world_size
        # NaN counts as infinite: the largest of a number and NaN is the number for some backends.
        largest = self.collectives.all_reduce(flat.abs().max().nan_to_num(torch.inf, torch.inf), "max")
        if not torch.isfinite(largest):
            return self.collectives.all_reduce(flat, "mean"), None  # an overflow has to be seen by all
        unit = largest.clamp(min=2048 * torch.finfo(flat.dtype).tiny) / (2048 // ranks)
        sent = (flat / unit).round().half()
        total = self.collectives.all_reduce(sent, "sum").to(flat.dtype)
        return total * (unit / ranks), flat - sent.to(flat.dtype) * unit

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """The optimizers' states, and what this rank still has to send."""
        rank = self.collectives.rank
        residuals = {f"residual/{rank}/{name}": value for name, value in self.residuals.items()}
        return {**super().optimizer_tensors(), **residuals}

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        """Go on from a checkpoint; a rank that the saving run didn't have begins with nothing to send."""
        super().load(reader, state, model_only=model_only)
        prefix = f"residual/{self.collectives.rank}/"
        parameters = dict(self.original_module.named_parameters())
        names = [key[len(prefix) :] for key in reader.tensors if key.startswith(prefix)]
        self.residuals = {} if model_only else {name: torch.zeros_like(parameters[name]) for name in names}
        reader.read({prefix + name: value for name, value in self.residuals.items()})
