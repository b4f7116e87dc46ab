"""Values that go from one stage to the next: a tensor, or any nested structure of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stratagem.errors import DataError
from stratagem_pipeline.nests import Structure, flattened, rebuilt

Shape = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Form:
    """The structure of a value, with shape and dtype of each tensor in it; picklable."""

    spec: Structure
    others: tuple[Any, ...]
    """All leaves in order, with None in place of each tensor."""
    is_tensor: tuple[bool, ...]
    shapes: tuple[Shape, ...]

    def __str__(self) -> str:
        """Return dtype and shape of the tensors, for errors."""
        return (
            ", ".join(f"{str(dtype).removeprefix('torch.')} {shape}" for shape, dtype in self.shapes)
            or "no tensor"
        )

    def value(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Put tensors back into the structure."""
        remaining = iter(tensors)
        leaves = [next(remaining) if here else other for here, other in zip(self.is_tensor, self.others)]
        return rebuilt(self.spec, leaves)

    def empty(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return uninitialized tensors of these shapes."""
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.shapes)

    def zeros(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return tensors of zeros of these shapes. Zero is a valid class, token and number."""
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in self.shapes)


def form_and_tensors(value: Any) -> tuple[Form, tuple[torch.Tensor, ...]]:
    """Return the form of a value, and its tensors."""
    spec, leaves = flattened(value)
    here = tuple(isinstance(leaf, torch.Tensor) for leaf in leaves)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    others = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Form(spec, others, here, tuple((tuple(t.shape), t.dtype) for t in tensors)), tensors


def rows_of(tensors: Sequence[torch.Tensor], what: str) -> int:
    """Return the size of dim 0, the number of rows, which all tensors must share.

    Raises:
        DataError: there is no tensor, or the sizes differ.
    """
    lengths = sorted({tensor.shape[0] if tensor.dim() else -1 for tensor in tensors})
    if len(lengths) == 1 and lengths[0] > 0:
        return lengths[0]
    found = f"tensors of {[tuple(tensor.shape) for tensor in tensors]}" if tensors else "no tensor"
    raise DataError(
        f"{what} is called with {found}, and a pipeline cuts it into micro-batches along dim 0: give "
        "every tensor the same number of rows, at least one"
    )


def padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Repeat the last row until there are `rows`. Copies of a real row are valid inputs for any layer."""
    missing = rows - tensor.shape[0]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor[-1:].detach().expand(missing, *tensor.shape[1:])])


def real_rows(tensor: torch.Tensor, rows: int, of: int, what: str) -> torch.Tensor:
    """Return the part of an output that belongs to the first `rows` of `of` input rows.

    Raises:
        DataError: the output doesn't have a fixed number of rows for each row of input.
    """
    if rows == of:
        return tensor
    if tensor.dim() == 0 or tensor.shape[0] % of:
        raise DataError(
            f"{what} makes an output of shape {tuple(tensor.shape)} of {of} rows, which can't be cut "
            f"to the {rows} rows "
            "that a smaller micro-batch has: give it an output with a row per sample, or batches that micro_batches "
            "divides (drop_last=True)"
        )
    return tensor[: rows * (tensor.shape[0] // of)]
