"""Operations that may run on shards directly, since each shard of the result depends on the same shard of inputs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["on_shards"]

ABOUT_THE_TENSOR = frozenset(
    [
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_inference",
        "is_contiguous",
        "element_size",
        "get_device",
        "is_same_size",
        "requires_grad_",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "backward",
        "grad",
        "detach_",
        "is_set_to",
        "has_names",
        "data_ptr",
        "untyped_storage",
        "storage_offset",
        "__len__",
        "__hash__",
        "__reduce_ex__",
        "__setstate__",
        "__dir__",
        "is_tensor",
        "is_storage",
        "result_type",
        "can_cast",
        "is_pinned",
        "promote_types",
        "refine_names",
        "rename_",
        "_has_compatible_shallow_copy_type",
        "as_subclass",
        "_group_tensors_by_device_and_dtype",
        "_typed_storage",
        "is_distributed",
        "is_shared",
        "dim_order",
    ]
)
"""Operations that read the tensor's metadata only, not its values."""

VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
"""Attributes of a tensor that are views of its values. All other attributes read no values."""

GIVES_TENSORS = frozenset(
    {"get grad", "get _grad", "get data", "get _base", "requires_grad_", "grad", "detach_", "as_subclass"}
)
"""Operations of `ABOUT_THE_TENSOR` whose result may be a sharded tensor."""

_ARITHMETIC = [
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "subtract",
    "multiply",
    "divide",
    "addcmul",
    "addcdiv",
    "lerp",
    "sqrt",
    "rsqrt",
    "square",
    "neg",
    "abs",
    "sign",
    "reciprocal",
    "pow",
    "exp",
    "log",
    "clamp",
    "clamp_min",
    "clamp_max",
    "clip",
    "nan_to_num",
    "sigmoid",
    "tanh",
    "relu",
    "isnan",
    "isfinite",
    "isinf",
]
_OPERATORS = ["add", "sub", "mul", "truediv", "pow"]
ELEMENTWISE = frozenset(
    [
        *_ARITHMETIC,
        *(f"{name}_" for name in _ARITHMETIC),
        *(f"_foreach_{name}" for name in _ARITHMETIC),
        *(f"_foreach_{name}_" for name in _ARITHMETIC),
        *(f"__{name}__" for name in _OPERATORS),
        *(f"__r{name}__" for name in _OPERATORS),
        *(f"__i{name}__" for name in _OPERATORS),
        *[
            "__neg__",
            "__abs__",
            "__pos__",
            "neg",
            "positive",
            "clone",
            "zero_",
            "fill_",
            "copy_",
            "_foreach_copy_",
            "_foreach_zero_",
        ],
        *["zeros_like", "ones_like", "full_like", "empty_like", "_amp_foreach_non_finite_check_and_unscale_"],
        *["_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"],
    ]
)
"""Operations whose result at an element depends only on the operands at this element."""

RANDOM_LIKE = frozenset({"rand_like", "randn_like", "randint_like"})
NEW = frozenset({"new", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"})
SHAPED_AS = frozenset({"view_as", "expand_as", "reshape_as", "type_as"})
"""Methods that read only the shape or dtype of their second tensor."""

READERS = frozenset({"item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__"})
"""Operations that return values as Python or NumPy objects."""


UNCOUNTED = frozenset({"apply_", "map_", "map2_"})
"""Operations that change values without incrementing the tensor's version counter."""


class _Depth(threading.local):
    value = 0


_DEPTH = _Depth()


@contextmanager
def on_shards() -> Iterator[None]:
    """Let sharded tensors act as torch's DTensors in this thread, except where operations return Python values.

    For code that computes with shards on purpose: forwards of split layers, and strategies.
    """
    _DEPTH.value += 1
    try:
        yield
    finally:
        _DEPTH.value -= 1


def is_on_shards() -> bool:
    """Whether this thread is within `on_shards`."""
    return _DEPTH.value > 0
