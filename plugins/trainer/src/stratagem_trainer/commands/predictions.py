"""Print predictions, and write them as NumPy arrays to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from stratagem.errors import UsageError

if TYPE_CHECKING:
    import numpy as np


def refuse_output(path: str | None) -> None:
    """Refuse an output file that can't be written, before anything runs.

    Raises:
        UsageError: its name doesn't end in .npz, or its folder doesn't exist.
    """
    if path is None:
        return
    if not path.endswith(".npz"):
        raise UsageError(f"--output {path!r} must end in .npz: predictions are written as NumPy arrays")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"--output {path!r} can't be written: there is no folder {folder!r}")


def partial_output(path: str) -> str:
    """Return the file for the predictions of a stopped run: FILE.partial.npz."""
    return f"{path.removesuffix('.npz')}.partial.npz"


def keep(predictions: Sequence[Any], output: str | None) -> None:
    """Print the names and shapes of the predictions' arrays, and write them to `output` if given."""
    arrays = arrays_of(predictions)
    for name, array in arrays.items():
        click.echo(f"{name}  {array.dtype} {'×'.join(map(str, array.shape))}")
    if output is not None:
        write_arrays(output, arrays)
        click.echo(f"written to {output}")


def arrays_of(predictions: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Concatenate the predictions of all batches.

    Args:
        predictions: one per batch: a tensor, a number, or a dict, tuple or list of those.

    Returns:
        Arrays by name: "predictions" for tensors; the keys of dicts; "0", "1" and so on for tuples.
        bfloat16 becomes float32, as NumPy has no bfloat16.

    Raises:
        UsageError: an array can't hold the predictions.
    """
    import numpy as np

    columns: dict[str, list[Any]] = {}
    for batch in predictions:
        for name, value in _named(batch).items():
            columns.setdefault(name, []).append(_array(value))
    try:
        return {name: np.concatenate(parts) for name, parts in columns.items()}
    except ValueError as error:
        raise UsageError(
            f"predictions of different batches can't be joined to one array ({error}): return tensors whose "
            "first dim is the batch and whose other dims are always the same"
        ) from error


def write_arrays(path: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a .npz file atomically."""
    import numpy as np

    new = f"{path}.new"
    with open(new, "wb") as file:
        np.savez(file, **dict(arrays))  # type: ignore[arg-type]  # NumPy's other keyword is a bool
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _named(batch: Any) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return {str(name): value for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return {str(index): value for index, value in enumerate(batch)}
    return {"predictions": batch}


def _array(value: Any) -> np.ndarray[Any, Any]:
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        value = value.float() if value.dtype == torch.bfloat16 else value
        return np.atleast_1d(value.detach().cpu().numpy())
    if isinstance(value, (bool, int, float, str)):
        return np.atleast_1d(np.asarray(value))
    raise UsageError(
        f"predict_step returned a {type(value).__name__}: return tensors, numbers, or a dict or tuple of them"
    )
