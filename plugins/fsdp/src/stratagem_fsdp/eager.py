"""Hooks on modules that may be compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from stratagem.sdk.processes import COMPILER


def eager(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a hook out of compiled graphs, as torch keeps those of `fully_shard`."""
    if COMPILER not in sys.modules:  # nothing is compiled, and importing torch's compiler takes a second
        return hook
    disabled: Callable[..., Any] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]  # torch has no types for it
    return disabled
