"""Checks the arguments of collectives, in one process as in several."""

from __future__ import annotations

from typing import Any

from stratagem.errors import UsageError

OPS = ("mean", "sum", "min", "max", "product")
_MEANT = {
    "avg": "mean",
    "average": "mean",
    "prod": "product",
    "add": "sum",
    "minimum": "min",
    "maximum": "max",
}


def check_reduction(tensor: Any, op: Any) -> None:
    """Refuse a reduction that isn't one of `OPS`, or that has no meaning for the tensor's dtype.

    Raises:
        UsageError: says what to give instead.
    """
    check_tensor("all_reduce", tensor)
    if not isinstance(op, str) or op not in OPS:
        # torch's own print as RedOpType.SUM or ReduceOp.SUM.
        name = str(op).rpartition(".")[2].lower()
        meant = name if name in OPS else _MEANT.get(name)
        hint = f": give {meant!r}" if meant else ""
        raise UsageError(f"all_reduce got the op {op!r}; allowed are {', '.join(map(repr, OPS))}{hint}")
    if str(tensor.dtype) == "torch.bool" and op not in ("min", "max"):
        raise UsageError(
            f"all_reduce {op!r} got a bool tensor: convert it to a number type first, as by tensor.float(), or give "
            "'min' for all and 'max' for any"
        )
    if tensor.is_complex() and op not in ("mean", "sum"):
        raise UsageError(f"all_reduce {op!r} got a complex tensor, which has only 'mean' and 'sum'")


def check_tensor(what: str, value: Any) -> None:
    """Refuse a value that isn't a tensor.

    Raises:
        UsageError: names the type.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"{what} got a {type(value).__name__}; allowed are tensors: give torch.tensor(value), or call "
            "gather_objects for other values"
        )


def check_source(src: Any, world_size: int) -> None:
    """Refuse to broadcast from a rank that doesn't exist.

    Raises:
        UsageError: says which ranks there are.
    """
    if not isinstance(src, int) or not 0 <= src < world_size:
        ranks = f"ranks 0 to {world_size - 1}" if world_size > 1 else "only rank 0"
        raise UsageError(f"broadcast got src={src!r}, and there {'are' if world_size > 1 else 'is'} {ranks}")


def described(call: str, value: Any = None) -> str:
    """Describe a call of a collective, for comparing it across ranks: "all_reduce 'sum' of float32 (2, 3)"."""
    if value is None:
        return call
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{call} of {dtype} {tuple(value.shape)}"
