"""Refuses ordinary tensors in place of split parameters: split layers can't compute with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from stratagem.errors import ShardedUseError
from stratagem_model_parallel.kinds import is_split


def refuse_replaced(root: nn.Module) -> None:
    """Register hooks that raise when a split layer of `root` is called with a replaced parameter.

    Raises:
        ShardedUseError: later, in the forward, as by `torch.func.functional_call`.
    """
    for prefix, module in root.named_modules():
        names = [name for name, each in module.named_parameters(recurse=False) if is_split(each)]
        if names:
            module.register_forward_pre_hook(partial(_check, names, prefix))


def _check(names: Sequence[str], prefix: str, module: nn.Module, _: Any) -> None:
    for name in names:
        if not isinstance(getattr(module, name), DTensor):
            shown = f"{prefix}.{name}" if prefix else name
            raise ShardedUseError(
                f"{shown!r} isn't the parameter that setup() split: another tensor "
                "was put in its place, as torch.func.functional_call, a parametrization or an assignment after "
                "setup() does; leave this layer out of the plan, choose ddp, or change the parameter in place"
            )
