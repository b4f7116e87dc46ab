"""`OuterOptimizer`: the model that all replicas share, stepped by the mean of how far they went from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class OuterSettings:
    """When and how replicas take an outer step together."""

    sync_every: int = 100
    """Optimizer steps from one outer step to the next: H."""
    lr: float = 0.7
    """Learning rate of the outer optimizer."""
    momentum: float = 0.9
    """Its momentum; 0 for none."""
    nesterov: bool = True
    """Whether its momentum is Nesterov's."""
    sent_as: str | None = None
    """Dtype in which outer gradients are sent: "fp16", "bf16", "int8", or None for the parameters' own."""
    fragments: int = 1
    """Parts of the model that are synchronised one after the other within `sync_every` steps."""
    overlap_steps: int = 0
    """Optimizer steps that continue while a fragment is on its way."""
    mixing: float = 0.0
    """Weight of a replica's own parameters when a fragment arrives; the outer ones have the rest."""

    def due(self, fragment: int, steps: int) -> bool:
        """Whether a fragment is sent after this many optimizer steps."""
        return (steps - (fragment + 1) * self.sync_every // self.fragments) % self.sync_every == 0


class OuterOptimizer:
    """SGD over the parameters that replicas last agreed on, kept on the CPU in at least float32.

    Not collective: all ranks give it the same means.

    Args:
        settings: of the steps.
        named: the replica's floating-point parameters; they have the values that all ranks begin with.
    """

    def __init__(self, settings: OuterSettings, named: Mapping[str, torch.Tensor]) -> None:
        self._settings = settings
        self.parameters: Tensors = {}
        """What the replicas last agreed on; complex ones as pairs of real numbers."""
        self.momentum: Tensors = {}
        """Momentum of the parameters that have been stepped with it."""
        self.begin(named)

    def begin(self, named: Mapping[str, torch.Tensor]) -> None:
        """Begin from the parameters as they are, without momentum."""
        self.parameters = {name: as_real(parameter).clone() for name, parameter in named.items()}
        self.momentum = {}

    def gradients(self, names: Iterable[str], named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the replica's outer gradients, flat: what was agreed on, minus where the replica is now."""
        deltas = [self.parameters[name] - as_real(named[name]) for name in names]
        dtype = torch.float64 if any(d.dtype == torch.float64 for d in deltas) else torch.float32
        return torch.cat([delta.reshape(-1).to(dtype) for delta in deltas])

    def step(self, names: Sequence[str], mean: torch.Tensor, frozen: set[str]) -> None:
        """Step by the mean of the replicas' outer gradients, as `torch.optim.SGD` does.

        Args:
            names: as for `gradients`.
            mean: flat, over all ranks.
            frozen: names of those that are no longer trained: they become the replicas' average, and lose
                their momentum, which would move them on.
        """
        settings = self._settings
        for name, flat in zip(names, torch.split(mean, [self.parameters[name].numel() for name in names])):
            parameter = self.parameters[name]
            gradient = flat.view(parameter.shape).to(parameter.dtype)
            if name in frozen:
                self.momentum.pop(name, None)
                parameter.sub_(gradient)
                continue
            if settings.momentum:
                buffer = self.momentum.get(name)
                buffer = gradient.clone() if buffer is None else buffer.mul_(settings.momentum).add_(gradient)
                self.momentum[name] = buffer
                gradient = gradient.add(buffer, alpha=settings.momentum) if settings.nesterov else buffer
            parameter.sub_(gradient, alpha=settings.lr)


def as_real(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's values on the CPU, in at least float32, complex ones as pairs of real numbers."""
    value = parameter.detach().to("cpu")
    value = torch.view_as_real(value) if value.is_complex() else value
    return value if value.dtype == torch.float64 else value.float()


def fragments_of(named: Mapping[str, torch.Tensor], count: int) -> list[list[str]]:
    """Return the names of `count` parts of neighbouring parameters, of about equally many elements each."""
    total = sum(parameter.numel() for parameter in named.values())
    parts: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for name, parameter in named.items():
        parts[min(count - 1, (before + parameter.numel() // 2) * count // max(total, 1))].append(name)
        before += parameter.numel()
    return parts
