"""`Bug`: a program in a right and a wrong form; `Case`: one run of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from stratagem_diff import record
from torch import Tensor, nn

Form = Literal["reference", "rounding", "right", "wrong"]
"""The reference runs in one process, and once more with another rounding; the engine runs the other two."""
STEPS, ROWS = 3, 8


@dataclass(frozen=True)
class Case:
    """One run of a program."""

    folder: Path
    """Of its record."""
    form: Form
    rank: int = 0
    world_size: int = 1

    @property
    def is_wrong(self) -> bool:
        """Whether the program has its bug."""
        return self.form == "wrong"

    @property
    def is_reference(self) -> bool:
        """Whether plain PyTorch runs in one process."""
        return self.form in ("reference", "rounding")

    def own(self, rows: Tensor) -> Tensor:
        """Return this rank's rows: every second one of two ranks."""
        return rows[self.rank :: self.world_size]

    def record(self, model: nn.Module, optimizer: Any, steps: int = STEPS) -> AbstractContextManager[Any]:
        """Record the training of a block."""
        return record(model, optimizer, self.folder, steps=steps, rounding=self.form == "rounding")


@dataclass(frozen=True)
class Bug:
    """A bug of a public issue, in our own words."""

    program: Callable[[Case], None]
    """Trains, and records itself; named after the bug."""
    area: str
    """What it is about, such as "clipping"."""
    engine: str
    """What the right and the wrong form run on."""
    url: str
    """Of the issue or pull request."""
    place: str
    """Where the first difference is: the kind of value, and a pattern of its name."""
    world_size: int = 2
    """Ranks of the right and the wrong form."""

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.__name__


class Net(nn.Module):
    """A small model: two linear layers with a normalization between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, rows: Tensor) -> Tensor:
        values: Tensor = self.head(self.norm(self.body(rows)))
        return values


def make_net(kind: type[nn.Module] = Net) -> Any:
    """Return a model with the same weights in every form and on every rank."""
    torch.manual_seed(0)
    return kind()


def batches(steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of unequal rows, with their targets."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randn(ROWS, 6, generator=generator)
        yield rows, torch.randn(ROWS, 3, generator=generator)
