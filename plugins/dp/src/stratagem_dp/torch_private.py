"""What this plugin uses of torch that torch keeps private in addition to that of `stratagem_sharding.torch_private`.

All of it, each with the reason.

plugins/dp/tests/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

NORM: Any = _NormBase
"""The base of batch and instance norms, which keep statistics of the batches that they saw."""


def empty_copy(module: nn.Module) -> nn.Module:
    """Return a module of the same class and attributes, without parameters and buffers, and not compiled.

    `_replicate_for_data_parallel` is what `nn.DataParallel` copies by, and what ScriptModules refuse.
    """
    copy: nn.Module = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]  # torch has no types for it
    copy._compiled_call_impl = None
    return copy
