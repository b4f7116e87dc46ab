"""Refuse methods that look like hooks of a trainer, but that nothing would call.

A method that the program calls itself may have any name: it only causes a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from inspect import Signature, signature

from stratagem.errors import ConfigError, nearest
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.data.data_module import DataModule
from stratagem_trainer.data.transfer_hooks import TransferHooks
from stratagem_trainer.loops.loader_index import NAME as LOADER_INDEX
from stratagem_trainer.module.hooks import ModuleHooks
from stratagem_trainer.module.module import Module
from stratagem_trainer.module.own_calls import calls_itself
from stratagem_trainer.module.step_module import STEP_NAMES
from stratagem_trainer.rank_zero import rank_zero_warn
from stratagem_trainer.stage.hooks import OF_CALLBACKS, OF_MODULES, TABLE

ELSEWHERE = {
    "backward": "optimize manually, and pass arguments of backward to self.manual_backward",
    "configure_sharded_model": "it is now called configure_model",
    "test_epoch_end": "it is now called on_test_epoch_end and takes no outputs",
    "training_epoch_end": "it is now called on_train_epoch_end and takes no outputs",
    "validation_epoch_end": "it is now called on_validation_epoch_end and takes no outputs",
}
"""Hooks of other trainers → what to do instead."""
_ARGUMENTS = {hook.name: hook.arguments for hook in TABLE}
_METHODS = tuple(
    name for each in (TransferHooks, ModuleHooks, Module) for name in vars(each) if not name.startswith("_")
)
_OF_DATA = tuple(name for name in dir(DataModule) if not name.startswith("_"))


def refuse_uncalled(module: Module) -> None:
    """Refuse a module with a hook of another trainer, or with a method whose name is nearly that of a hook.

    Raises:
        ConfigError: names the method, and what to do instead.
    """
    owner = type(module).__qualname__
    names = {name for name, _ in _own_methods(type(module), Module)}
    for name in sorted(names):
        if name in OF_MODULES:
            _refuse_wrong_arguments(owner, name, getattr(module, name), _ARGUMENTS[name])
        if name in STEP_NAMES:
            _refuse_wrong_step(owner, name, getattr(module, name))
        if hasattr(Module, name):
            continue
        if name in ELSEWHERE:
            raise ConfigError(f"{owner} defines {name}, which is never called here: {ELSEWHERE[name]}")
        if name in OF_CALLBACKS:
            _refuse_or_warn(
                type(module),
                Module,
                name,
                f"{owner} defines {name}, which is a hook of callbacks only: define it in a Callback",
            )
            continue
        near = [match for match in get_close_matches(name, _METHODS, 3, 0.92) if match not in names]
        if name.startswith("on_") or near:
            hooks = [hook for hook in OF_MODULES if hook.startswith("on_")]
            known = ", ".join(near or get_close_matches(name, hooks, 3, 0.5) or hooks)
            _refuse_or_warn(
                type(module),
                Module,
                name,
                f"{owner} defines {name}, which is never called; nearest: {known}. Rename it to one of these, or to "
                "something else; docs/guides/module-hooks.md has all hooks",
            )


def refuse_uncalled_hooks(callback: Callback, is_lenient: bool = False) -> None:
    """Refuse a callback with a method that begins with "on_" and isn't a hook.

    Args:
        callback: callback of a trainer or a module.
        is_lenient: whether to only warn about such a method.

    Raises:
        ConfigError: names the method and the nearest hooks.
    """
    for name, _ in _own_methods(type(callback), Callback):
        if name in OF_CALLBACKS:
            given = ("trainer", "module", *_ARGUMENTS[name])
            _refuse_wrong_arguments(type(callback).__qualname__, name, getattr(callback, name), given)
        if name.startswith("on_") and name not in OF_CALLBACKS:
            _refuse_or_warn(
                type(callback),
                Callback,
                name,
                f"{type(callback).__qualname__} defines {name}, which is never called; {nearest(name, OF_CALLBACKS)}",
                is_lenient,
            )


def refuse_uncalled_of_data(data: DataModule) -> None:
    """Refuse a data module with a method that looks like a hook, but isn't one.

    Raises:
        ConfigError: names the method and the nearest hooks.
    """
    owner = type(data).__qualname__
    names = {name for name, _ in _own_methods(type(data), DataModule)}
    for name in sorted(names):
        if name in _ARGUMENTS and name in _OF_DATA:
            _refuse_wrong_arguments(owner, name, getattr(data, name), _ARGUMENTS[name])
        near = [match for match in get_close_matches(name, _OF_DATA, 3, 0.92) if match not in names]
        if name not in _OF_DATA and (name.startswith("on_") or near):
            known = ", ".join(near or [each for each in _OF_DATA if each.startswith("on_")])
            _refuse_or_warn(
                type(data),
                DataModule,
                name,
                f"{owner} defines {name}, which is never called on data modules; nearest: {known}",
            )


def _refuse_or_warn(kind: type, base: type, name: str, reason: str, is_lenient: bool = False) -> None:
    """Refuse a method that no trainer calls. Only warn if the program calls it itself."""
    is_lenient = is_lenient or warns_of_hooks(kind)
    if not is_lenient and not calls_itself(kind, base, name):
        raise ConfigError(reason)
    rank_zero_warn(f"{reason}. Ignore this if your program calls it itself", category=UncalledHookWarning)


def warns_of_hooks(kind: type) -> bool:
    """Return whether a class of modules, data modules or trainers has `uncalled_hooks = "warn"`."""
    return getattr(kind, "uncalled_hooks", "refuse") == "warn"


class UncalledHookWarning(UserWarning):
    """A method looks like a hook, but no trainer calls it."""


def _own_methods(kind: type, base: type) -> Iterator[tuple[str, object]]:
    """Yield the functions of classes between `kind` and `base`."""
    for each in kind.__mro__:
        if issubclass(each, base) and each is not base:
            yield from ((name, value) for name, value in vars(each).items() if callable(value))


def _refuse_wrong_step(owner: str, name: str, method: object) -> None:
    """Refuse a step that takes the loader's iterator, or can't be called with a batch, or a batch and its index."""
    if "dataloader_iter" in signature(method).parameters:  # type: ignore[arg-type]  # signature refuses what isn't callable
        raise ConfigError(
            f"{owner}.{name} takes dataloader_iter, but is called with (batch, batch_idx): take these"
        )
    taken = signature(method).replace(return_annotation=Signature.empty)  # type: ignore[arg-type]  # signature refuses what isn't callable
    for count in (1, 2, 3):
        try:
            taken.bind(*range(count))
        except TypeError:
            continue
        return
    raise ConfigError(
        f"{owner}.{name} takes {taken}, but is called with (batch, batch_idx): take these, or only the batch"
    )


def _refuse_wrong_arguments(owner: str, name: str, method: object, given: tuple[str, ...]) -> None:
    """Refuse a method that can't be called with the arguments of its hook."""
    taken = signature(method).replace(return_annotation=Signature.empty)  # type: ignore[arg-type]  # signature refuses what isn't callable
    of_evaluation = given[-1:] == ("batch_idx",) and not name.startswith("on_train")
    index = {LOADER_INDEX: 0} if of_evaluation and LOADER_INDEX in taken.parameters else {}
    try:
        taken.bind(*given, **index)
    except TypeError:
        raise ConfigError(
            f"{owner}.{name} takes {taken}, but is called with ({', '.join(given)}): take these, or rename your "
            "method if it isn't meant as a hook"
        ) from None
