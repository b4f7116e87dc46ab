"""`MixingOperations`: finds operations of a step that combine several elements, such as a norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stratagem_sharding.torch_private import TorchDispatchMode, dims_of, tree_flatten

REDUCTION = getattr(torch.Tag, "reduction", None)
"""The tag by which newer torch versions mark most of these operations; None if this version has none."""
NAMES = frozenset(
    {
        *(
            "all",
            "amax",
            "amin",
            "aminmax",
            "any",
            "argmax",
            "argmin",
            "count_nonzero",
            "cummax",
            "cummin",
            "cumprod",
        ),
        *("cumsum", "kthvalue", "linalg_vector_norm", "logcumsumexp", "logsumexp", "mean", "median", "mode"),
        *("nanmedian", "nansum", "norm", "prod", "sort", "std", "std_mean", "sum", "topk", "var", "var_mean"),
        *("_foreach_norm", "_foreach_max", "_softmax", "_log_softmax"),
        *("addbmm", "addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "mm", "mv", "vdot"),
    }
)
"""Names of operations whose result elements depend on many elements, besides those that begin with `linalg_`."""


class MixingOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Active during an optimizer's step: finds an operation that mixes the elements of a tensor.

    Args:
        rows_apart: ignore operations that mix only elements within each row.

    Attributes:
        found: the name of the first such operation, or "".
    """

    def __init__(self, rows_apart: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.found, self._rows_apart = "", rows_apart

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if (
            not self.found
            and _mixes(func)
            and _has_several(args)
            and not self._is_within_rows(func, args, kwargs)
        ):
            self.found = func.overloadpacket.__name__
        run: Callable[..., Any] = func
        return run(*args, **(kwargs or {}))

    def _is_within_rows(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
        dims = dims_of(operation, args, kwargs or {})
        count = args[0].dim() if dims and isinstance(args[0], torch.Tensor) else 0
        return self._rows_apart and bool(dims) and all(dim % count for dim in dims)


def _mixes(operation: Any) -> bool:
    name = operation.overloadpacket.__name__
    return (
        name in NAMES or name.startswith("linalg_") or (REDUCTION is not None and REDUCTION in operation.tags)
    )


def _has_several(args: Sequence[Any]) -> bool:
    """Whether an argument has several elements. A step count, for example, has one."""
    return any(isinstance(each, torch.Tensor) and each.numel() > 1 for each in tree_flatten(list(args))[0])
