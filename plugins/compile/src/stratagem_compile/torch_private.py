"""What this plugin uses of torch that torch keeps private. All of it, each with the reason.

plugins/compile/tests/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def compiler_error() -> type[Exception]:
    """Return the base of torch's errors while it compiles. torch.compiler has no name for it."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def graphs() -> int:
    """Return how many graphs this process has compiled. torch.compiler doesn't count them."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def on_compilations(start: Callable[[Any], None], end: Callable[[Any], None]) -> Callable[[], None]:
    """Have `start` and `end` called around what torch compiles, in any thread; return what ends that.

    torch.compiler has no such hook.
    """
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)

    def remove() -> None:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)

    return remove


def limit_of_recompilations(limit: int) -> dict[str, int]:
    """Return the keywords of `torch.compile` by which it compiles one code so often.

    Blocks of one class share the code of its forward, so that the limit of 8 would count for all kinds together.
    Before torch 2.13, `torch.compile` had no such keyword.
    """
    known = inspect.signature(torch.compile).parameters
    return {"recompile_limit": limit} if "recompile_limit" in known else {}
