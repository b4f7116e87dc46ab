"""`Kind`: one row of the table, a model or a feature of training, and all that a plain loop needs of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLES = 8
"""In every global micro-batch: four ranks share them out evenly."""


@dataclass(frozen=True)
class StepContext:
    """What a training step may need beside the net and the batch."""

    index: int
    """Of the micro-batch in its epoch."""
    share: int
    """Which part of the global batch this is, from 0."""
    shares: int
    """Into how many parts the global batch was split."""
    gather: Callable[[Tensor], Tensor]
    """Stacks the tensors of all shares, with gradients."""
    optimizers: Sequence[Any] = ()
    """For manual optimization."""
    backward: Callable[[Tensor], None] = Tensor.backward
    """For manual optimization."""


class Kind:
    """A model or a feature. Each subclass that isn't `abstract` is a row; its docstring is the title.

    The same methods are run by the plain loop (`plain.py`) and by the trainer under a strategy
    (`trained.py`); neither knows the other.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    abstract: ClassVar[bool] = True
    theme: ClassVar[str] = ""

    tolerance: ClassVar[float] = 1e-4
    """How far weights may be from plain PyTorch's, relative to how far training moved them. Sums in
    another order give some 1e-6 with SGD; optimizers that divide by a gradient's size need more."""
    tolerance_reason: ClassVar[str] = ""
    """Why the tolerance is another than usual."""
    per_share: ClassVar[bool] = False
    """The plain loop computes the loss of each rank's share, and averages: where the mean over shares isn't
    the loss of the whole batch by the definition of the loss, as with statistics over a batch."""
    per_share_reason: ClassVar[str] = ""
    asks_share: ClassVar[bool] = False
    """The step itself depends on which share it has: parts of a batch in one process have none of their own."""
    per_process: ClassVar[bool] = False
    """Devices of one process have one share: what runs once on what all of them gave, as parameters' hooks."""

    accumulate: ClassVar[int] = 1
    epochs: ClassVar[int] = 1
    count: ClassVar[int] = 4
    """Global micro-batches per epoch."""
    max_norm: ClassVar[float | None] = None
    max_value: ClassVar[float | None] = None
    precision: ClassVar[str] = "32-true"
    manual: ClassVar[bool] = False
    deferred: ClassVar[bool] = False
    """The net is made in `configure_model`."""
    trains_nothing: ClassVar[bool] = False
    """Weights are to stay as they were."""
    monitored: ClassVar[bool] = False
    """Its scheduler takes the epoch's mean loss."""
    lr: ClassVar[float] = 0.1
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Name of a strategy → what its user has to say about this net."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.abstract = abstract
        if abstract:
            return
        cls.title = " ".join((cls.__doc__ or "").split()).rstrip(".")
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        assert cls.title, f"{cls.__name__} needs a docstring: its title in the table"
        assert cls.name not in KINDS, f"two kinds are called {cls.name}"
        KINDS[cls.name] = cls()

    # The model ------------------------------------------------------------------------------------

    def net(self) -> nn.Module:
        """Make the net; generators are seeded around it."""
        return mlp()

    def built(self) -> nn.Module:
        """Make the net with the same values each time."""
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return self.net()

    # The data -------------------------------------------------------------------------------------

    def sample(self, generator: torch.Generator) -> Any:
        """Make one global micro-batch: tensors whose first dim is `SAMPLES`."""
        x = torch.randn(SAMPLES, 6, generator=generator)
        return x, torch.randn(SAMPLES, 3, generator=generator)

    def batches(self) -> list[Any]:
        """Return the global micro-batches of an epoch, the same each time."""
        generator = torch.Generator().manual_seed(11)
        return [self.sample(generator) for _ in range(self.count)]

    # The step -------------------------------------------------------------------------------------

    def loss(self, net: nn.Module, batch: Any, context: StepContext) -> Any:
        """Return the loss of a batch, or what a training step may return instead."""
        x, y = batch
        return F.mse_loss(net(x), y)

    def manual_step(self, net: nn.Module, batch: Any, context: StepContext) -> None:
        """Train on a batch by hand, where `manual`."""
        raise NotImplementedError

    def optimizers(self, net: nn.Module) -> Any:
        """Return the optimizer, or a list of them."""
        return torch.optim.SGD(trainable(net), lr=self.lr)

    def schedulers(self, optimizers: Sequence[Any]) -> list[tuple[Any, str]]:
        """Return schedulers, each with when it steps: "step" or "epoch"."""
        return []

    # Between steps --------------------------------------------------------------------------------

    def on_epoch(self, net: nn.Module, epoch: int) -> None:
        """Before an epoch's first batch."""

    def before_batch(self, net: nn.Module, index: int) -> None:
        """Before a micro-batch."""

    def after_batch(self, net: nn.Module, index: int) -> None:
        """After a micro-batch and, where a window ends, its optimizer step."""


KINDS: dict[str, Kind] = {}
"""Name → kind, in the order of the table."""


def mlp(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    """A small net with names and order that every strategy can split."""
    return nn.Sequential(
        nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs)
    )


def stack(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    """A small net of two blocks and a head: blocks are what strategies gather, wrap or recompute one by one."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(inputs, 16), nn.Tanh()),
        nn.Sequential(nn.Linear(16, 16), nn.Tanh()),
        nn.Linear(16, outputs),
    )


def trainable(net: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def share_of(batch: Any, share: int, shares: int) -> Any:
    """Return one of `shares` equal parts of a global batch, by samples."""
    if isinstance(batch, Tensor):
        size = len(batch) // shares
        return batch[share * size : (share + 1) * size]
    if isinstance(batch, dict):
        return {key: share_of(value, share, shares) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(share_of(value, share, shares) for value in batch)
    return batch


def windows(batches: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """Return the micro-batches of each optimizer step; the last may have fewer."""
    return [batches[start : start + size] for start in range(0, len(batches), size)]
