"""Sends the last stage's results to every stage, in one small message per batch."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch

from stratagem_pipeline.nests import flattened, rebuilt

if TYPE_CHECKING:
    from stratagem import Collectives

SIZE = 64
"""Length of the message that is always sent: a flag, and the first numbers of the value."""
_EXACT = 2**53
"""Largest integer up to which float64 is exact."""


class Outcome:
    """Broadcasts nested values of numbers, tensors and other objects among the ranks of a copy.

    Numbers go in one message of fixed size. Names, structure and other objects are sent only if they differ from
    those of the batch before. Tensors that aren't scalars follow one by one.

    Args:
        pipe: the ranks.
        source: the rank that has the value.
    """

    def __init__(self, pipe: Collectives, source: int, device: torch.device) -> None:
        self._pipe, self._source, self._device = pipe, source, device
        self._layout: tuple[Any, tuple[Any, ...]] = (None, ())
        self._sent_layout: bytes | None = None

    def share(self, value: Any = None) -> Any:
        """Return the source's value, detached, on every rank. Collective in the copy.

        Args:
            value: any nested value; ignored except on the source.
        """
        if self._pipe.world_size == 1:
            return value
        is_source = self._pipe.rank == self._source
        numbers: list[float] = []
        tensors: list[torch.Tensor] = []
        changed = False
        if is_source:
            spec, leaves = flattened(value)
            kinds = tuple(_kind(leaf, numbers, tensors) for leaf in leaves)
            pickled = pickle.dumps((spec, kinds))
            changed, self._sent_layout = pickled != self._sent_layout, pickled
            self._layout = (spec, kinds)
        message = torch.zeros(SIZE, dtype=torch.float64)
        message[0] = float(changed)
        head = numbers[: SIZE - 1]
        message[1 : 1 + len(head)] = torch.tensor(head, dtype=torch.float64)
        received = self._pipe.broadcast(message, self._source).tolist()
        if received[0]:
            self._layout = self._pipe.broadcast(self._layout, self._source)
        spec, kinds = self._layout
        count = sum(kind[0] in _NUMBERS for kind in kinds)
        if count > SIZE - 1:
            rest = torch.zeros(count - SIZE + 1, dtype=torch.float64)
            if is_source:
                rest[:] = torch.tensor(numbers[SIZE - 1 :], dtype=torch.float64)
            received += self._pipe.broadcast(rest, self._source).tolist()
        numbers_received, tensors_left = iter(received[1:]), iter(tensors)
        leaves = [self._leaf(kind, numbers_received, tensors_left, is_source) for kind in kinds]
        # The source returns its own value, with the original precision and types.
        return value if is_source else rebuilt(spec, leaves)

    def _leaf(self, kind: tuple[Any, ...], numbers: Any, tensors: Any, is_source: bool) -> Any:
        if kind[0] == "scalar":
            return torch.tensor(next(numbers), dtype=torch.float64, device=self._device).to(kind[1])
        if kind[0] in _NUMBERS:
            return _NUMBERS[kind[0]](next(numbers))
        if kind[0] == "tensor":
            mine = next(tensors) if is_source else torch.empty(kind[2], dtype=kind[1], device=self._device)
            return self._pipe.broadcast(mine, self._source)
        return kind[1]


_NUMBERS: dict[str, Any] = {"float": float, "int": int, "bool": bool, "scalar": None}


def _kind(leaf: Any, numbers: list[float], tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """Describe a leaf, and add its number or tensor to the list that is sent."""
    if isinstance(leaf, torch.Tensor):
        if leaf.dim() == 0 and not leaf.is_complex():
            number = leaf.item()
            if isinstance(number, float) or abs(number) < _EXACT:
                numbers.append(float(number))
                return ("scalar", leaf.dtype)
        tensors.append(leaf.detach().contiguous())
        return ("tensor", leaf.dtype, tuple(leaf.shape))
    name = type(leaf).__name__
    if type(leaf) in (float, bool) or (type(leaf) is int and abs(leaf) < _EXACT):
        numbers.append(float(leaf))
        return (name,)
    return ("other", leaf)
