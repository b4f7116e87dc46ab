"""Refuses methods that look like hooks of a trainer and that nothing would ever call."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from inspect import signature

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import HOOKS, Callback
from stratagem_trainer.module import Module

_ELSEWHERE = {
    "configure_callbacks": "pass callbacks to Trainer",
    "configure_gradient_clipping": "pass gradient_clip_val to Trainer, or optimize manually",
    "configure_sharded_model": "it is now called configure_model",
    "lr_scheduler_step": "return a scheduler with a step() of its own from configure_optimizers",
    "optimizer_step": "optimize manually, or return an optimizer with a step() of its own",
    "optimizer_zero_grad": "optimize manually",
    "prepare_data": "do it before fit, or in train_dataloader",
    "test_epoch_end": "it is now called on_test_epoch_end and takes no outputs",
    "training_epoch_end": "it is now called on_train_epoch_end and takes no outputs",
    "transfer_batch_to_device": "return batches of tensors, lists, tuples, dicts or dataclasses",
    "validation_epoch_end": "it is now called on_validation_epoch_end and takes no outputs",
}
"""Hooks of other trainers, and what does the same here."""
_WITH_STAGE = ("setup", "teardown")
"""Hooks of other trainers by names that a class may well have for itself: known by their argument `stage`."""
_METHODS = tuple(name for name in vars(Module) if not name.startswith("_"))


def refuse_uncalled(module: Module) -> None:
    """Refuse a module with a method that another trainer would call, or whose name is nearly a hook's.

    Raises:
        ConfigError: names the method, and what to do instead.
    """
    owner = type(module).__qualname__
    names = dict(_own_methods(type(module), Module))
    for name, method in names.items():
        if hasattr(Module, name):
            continue
        if name in _ELSEWHERE:
            raise ConfigError(f"{owner} defines {name}, which is never called here: {_ELSEWHERE[name]}")
        if name in HOOKS:
            raise ConfigError(
                f"{owner} defines {name}, which is called of callbacks only: put it into a Callback"
            )
        if name in _WITH_STAGE and "stage" in signature(method).parameters:  # type: ignore[arg-type]
            raise ConfigError(
                f"{owner} defines {name}(stage), which is never called here: use a Callback's on_start or on_end, or "
                "configure_model for layers"
            )
        near = [match for match in get_close_matches(name, _METHODS, 3, 0.92) if match not in names]
        if name.startswith("on_") or near:
            known = ", ".join(near) or ", ".join(hook for hook in _METHODS if hook.startswith("on_"))
            raise ConfigError(
                f"{owner} defines {name}, which is never called; nearest: {known}. Callbacks have "
                f"{', '.join(HOOKS)}. Rename it to one of these, or to something else"
            )


def refuse_uncalled_hooks(callback: Callback) -> None:
    """Refuse a callback with a method that begins with "on_" and is none of the hooks.

    Raises:
        ConfigError: names the method and the nearest hooks.
    """
    for name, _ in _own_methods(type(callback), Callback):
        if name.startswith("on_") and name not in HOOKS:
            near = get_close_matches(name, HOOKS, 3, 0.5) or HOOKS
            raise ConfigError(
                f"{type(callback).__qualname__} defines {name}, which is never called; nearest: {', '.join(near)}"
            )


def _own_methods(kind: type, base: type) -> Iterator[tuple[str, object]]:
    """The functions that classes between `kind` and `base` define."""
    for each in kind.__mro__:
        if issubclass(each, base) and each is not base:
            yield from ((name, value) for name, value in vars(each).items() if callable(value))
