"""Functions of Lightning's utilities that don't need a trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getargvalues
from types import FrameType
from typing import Any

import torch
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.data.data_module import DataModule
from stratagem_trainer.loggers.base import NoExperiment
from stratagem_trainer.module.module import Module
from stratagem_trainer.rank_zero import rank_zero_only
from torch import nn

from stratagem.sdk.tensors import to_device


def grad_norm(
    module: nn.Module, norm_type: float | int | str, group_separator: str = "/"
) -> dict[str, float]:
    """Return the norm of each parameter's gradient by name, and the norm of all gradients together.

    For a `norm_type` of 2, keys are "grad_2.0_norm/name" and "grad_2.0_norm_total".

    Raises:
        ValueError: `norm_type` isn't above 0.
    """
    order = float(norm_type)
    if order <= 0:
        raise ValueError(f"norm_type is {norm_type}: give a number above 0, or inf")
    norms = {
        f"grad_{order}_norm{group_separator}{name}": parameter.grad.detach().norm(order)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        norms[f"grad_{order}_norm_total"] = torch.stack(list(norms.values())).norm(order)
    return {name: float(norm) for name, norm in norms.items()}


def move_data_to_device(batch: Any, device: torch.device | str) -> Any:
    """Return `batch` with its tensors on `device`. Tensors are found in lists, tuples, dicts and dataclasses."""
    return to_device(batch, torch.device(device))


def rank_zero_experiment(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a logger's `experiment`: on ranks other than 0 it is an object that accepts any call."""

    @wraps(function)
    def experiment(logger: Any) -> Any:
        return function(logger) if rank_zero_only.rank == 0 else NoExperiment()

    return experiment


def cli_lightning_logo() -> None:
    """Do nothing. Lightning prints its logo here."""


def is_overridden(method_name: str, instance: Any = None, parent: type | None = None) -> bool:
    """Whether an object's class overrides a method of `parent`.

    Args:
        method_name: of the method.
        instance: the object.
        parent: the base class; None is Lightning's base class for objects of this kind.

    Raises:
        ValueError: no base class of the object is known, or it has no such method.
    """
    if instance is None:
        return False
    if parent is None:
        bases: tuple[type, ...] = (Module, DataModule, Callback)
        parent = next((each for each in bases if isinstance(instance, each)), None)
        if parent is None:
            raise ValueError(
                f"is_overridden got a {type(instance).__name__} without its parent: pass parent=…"
            )
    given = getattr(type(instance), method_name, None)
    if not hasattr(parent, method_name):
        raise ValueError(f"{parent.__name__} has no method {method_name!r}")
    return method_name in vars(instance) or given is not getattr(parent, method_name)


def get_init_args(frame: FrameType) -> dict[str, Any]:
    """Return the arguments of the constructor that `frame` runs, by name and without `self`."""
    _, _, variadic, values = getargvalues(frame)
    if "__class__" not in values:
        return {}
    code = frame.f_code
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    found = {name: values[name] for name in names}
    return {**found, **(values[variadic] if variadic else {})}
