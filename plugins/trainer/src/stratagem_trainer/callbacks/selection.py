"""Which callbacks a stage has: those that the trainer was given, defaults, and the module's; and which it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratagem.errors import ConfigError, short
from stratagem.sdk.catalogue import FEATURES
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.module.hook_names import refuse_uncalled_hooks, warns_of_hooks

if TYPE_CHECKING:
    from stratagem.sdk.runs import Run
    from stratagem_trainer.module.module import Module


def with_defaults(
    callbacks: Callback | Sequence[Callback] | None,
    progress_bar: bool,
    summary: bool,
    checkpointing: bool,
    is_lenient: bool = False,
) -> list[Callback]:
    """Return the callbacks that a trainer was given, and those that it has where none of their kind is among them.

    Args:
        callbacks: as they were given.
        progress_bar: whether there is to be one.
        summary: the same.
        checkpointing: the same.
        is_lenient: only warn of hooks that would never be called.

    Raises:
        ConfigError: one is no callback, or defines a hook that would never be called.
    """
    from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem_trainer.callbacks.model_summary import ModelSummary
    from stratagem_trainer.callbacks.progress import ProgressBar

    if callbacks is not None and not isinstance(callbacks, (Callback, list, tuple)):
        raise ConfigError(f"callbacks={short(callbacks)} is no list of callbacks: give one or a list of them")
    given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
    for callback in given:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks has a {type(callback).__name__}: derive it from stratagem.Callback")
        refuse_uncalled_hooks(callback, is_lenient)
    if progress_bar and not any(isinstance(callback, ProgressBar) for callback in given):
        given.append(ProgressBar())
    if summary and not any(isinstance(callback, ModelSummary) for callback in given):
        given.append(ModelSummary())
    if checkpointing and not any(isinstance(callback, ModelCheckpoint) for callback in given):
        given.append(ModelCheckpoint())
    refuse_equal_keys(given)
    return given


def merge_callbacks(given: list[Callback], module: Module, run: Run) -> list[Callback]:
    """Return the trainer's callbacks, those of extensions, and the module's, which replace those of the same class.

    An extension may bring callbacks by a method `configure_callbacks`, as a module does; one of a class that the
    trainer was given is left out.

    Raises:
        ConfigError: the module returned something else, or two have one key for their states.
    """
    returned = module.configure_callbacks()
    own = [returned] if isinstance(returned, Callback) else list(returned)
    for callback in own:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"{type(module).__qualname__}.configure_callbacks returned a {type(callback).__name__}: return "
                "callbacks, derived from stratagem.Callback"
            )
        refuse_uncalled_hooks(callback, warns_of_hooks(type(module)))
    classes = {type(callback) for callback in own}
    extensions = [each.value for each in run.resolved if each.kind == "extension"]
    brought = [callback for each in extensions for callback in _of_extension(each)]
    given = [*given, *(each for each in brought if not any(type(each) is type(other) for other in given))]
    merged = [*(callback for callback in given if type(callback) not in classes), *own]
    refuse_equal_keys(merged)
    return merged


def _of_extension(value: object) -> Sequence[Callback]:
    configure = getattr(value, "configure_callbacks", None)
    return configure() if configure is not None else ()


def refuse_equal_keys(callbacks: Sequence[Callback]) -> None:
    """Refuse two states under one key, of which a checkpoint would keep the last alone.

    Raises:
        ConfigError: names the key.
    """
    keys: set[str] = set()
    for callback in callbacks:
        if type(callback).state_dict is Callback.state_dict:
            continue
        if callback.state_key in keys:
            raise ConfigError(
                f"two callbacks keep their state under {callback.state_key!r}: leave one out, or distinguish them "
                "(by another monitor, dirname or filename, or their own state_key)"
            )
        keys.add(callback.state_key)


def refuse_callbacks(run: Run, callbacks: Sequence[Callback]) -> None:
    """Refuse a callback that needs what the run's strategy doesn't declare.

    Raises:
        CombinationError: names the callback, the strategy, and those that can.
    """
    for callback in callbacks:
        for feature in callback.needs:
            if feature not in run.capabilities.features:
                raise run.refusal(feature, f"{type(callback).__name__}, which needs {FEATURES[feature]}")
