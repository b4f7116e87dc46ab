"""Explains out-of-memory errors: what the device's memory held, and what would need less."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from stratagem.errors import UsageError, bytes_text
from stratagem.strategies.torch_private import without_subclass_functions

if TYPE_CHECKING:
    from stratagem.runtime.session import Session

OTHERS = "activations and others"
SMALLER_STEPS = (
    "take smaller batches and accumulate them (accumulate_grad_batches), precision='bf16-mixed', or activation "
    "checkpointing"
)
SHARDED = (
    "take a strategy that shards parameters, gradients and optimizer states over more devices "
    "(`stratagem strategies` lists them), or an optimizer with a smaller state"
)


class DeviceMemoryError(UsageError, torch.OutOfMemoryError):
    """A device ran out of memory. `except torch.OutOfMemoryError` catches it, too."""


def device_memory_error(error: torch.OutOfMemoryError, session: Session) -> DeviceMemoryError:
    """Return the error that says what the device's memory held when torch raised `error`. Not collective."""
    held = held_bytes(session)
    peak = session.run.accelerator.memory(session.device).get("peak_allocated_bytes")
    known, largest = "", OTHERS
    if peak is not None:
        held[OTHERS] = max(0, peak - sum(held.values()))
        parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in held.items() if size)
        known = f"; up to {bytes_text(peak)} were allocated: {parts}"
        largest = max(held, key=lambda name: held[name])
    advice = SMALLER_STEPS if largest == OTHERS else SHARDED
    if not session.set_up_modules():
        advice = "take another device or a smaller model"
    return DeviceMemoryError(
        f"{session.device} ran out of memory {_doing(error.__traceback__)}{known}; {advice}"
    )


def held_bytes(session: Session) -> dict[str, int]:
    """Return the bytes of this rank's tensors of prepared modules, by kind. Not collective."""
    held = {"parameters and buffers": 0, "gradients": 0, "optimizer states": 0, OTHERS: 0}
    # Count local shards, without a collective: other ranks may not have run out of memory, and wouldn't join it.
    with torch.no_grad(), without_subclass_functions():
        for prepared, _ in session.set_up_modules():
            module, optimizers = prepared.original_module, prepared.optimizers
            stepped = [p for each in optimizers for group in each.param_groups for p in group["params"]]
            states = [
                state for each in optimizers for state in each.state.values() if isinstance(state, Mapping)
            ]
            held["parameters and buffers"] += _bytes([*module.parameters(), *module.buffers(), *stepped])
            held["gradients"] += _bytes(p.grad for p in [*module.parameters(), *stepped])
            held["optimizer states"] += _bytes(value for state in states for value in state.values())
    return held


def _bytes(values: Iterable[Any]) -> int:
    """Return the size of all tensors among `values`. Local shards count instead of DTensors; duplicates once."""
    tensors = {id(each): each for each in values if isinstance(each, torch.Tensor) and not is_lazy(each)}
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors.values()]
    return sum(each.numel() * each.element_size() for each in local)


def _doing(trace: TracebackType | None) -> str:
    """Say in which part of a step the error was raised, and at which line of the user's code."""
    steps = list(traceback.walk_tb(trace))
    paths = [Path(frame.f_code.co_filename).as_posix() for frame, _ in steps]
    of_modules = {
        frame.f_code.co_name
        for (frame, _), path in zip(steps, paths)
        if path.endswith("/nn/modules/module.py")
    }
    if any("/torch/optim/" in path for path in paths):
        doing = "in the optimizer's step"
    elif any(path.endswith("/torch/autograd/__init__.py") for path in paths):
        doing = "in backward"
    elif "to" in of_modules:
        doing = "while a module was moved to it"
    elif of_modules:
        doing = "in a forward"
    else:
        doing = "outside of forward, backward and step"
    own = [
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in steps
        if not _is_librarys(frame.f_globals.get("__name__", ""))
    ]
    return f"{doing} ({own[-1]})" if own else doing


def _is_librarys(module: str) -> bool:
    package = module.partition(".")[0]
    return (
        package in ("torch", "pluggy")
        or package.startswith("stratagem")
        or package in sys.stdlib_module_names
    )
