"""Choose the callbacks of a stage: the trainer's, the defaults and the module's. Refuse those that don't fit."""

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
    """Return the callbacks that a trainer was given, and the default ones for kinds that aren't among them.

    Args:
        callbacks: the user's callbacks.
        progress_bar: whether to add a ProgressBar.
        summary: whether to add a ModelSummary.
        checkpointing: whether to add a ModelCheckpoint.
        is_lenient: whether to only warn about hooks that would never be called.

    Raises:
        ConfigError: one isn't a callback, or defines a hook that would never be called.
    """
    from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
    from stratagem_trainer.callbacks.model_summary import ModelSummary
    from stratagem_trainer.callbacks.progress import ProgressBar

    if callbacks is not None and not isinstance(callbacks, (Callback, list, tuple)):
        raise ConfigError(
            f"callbacks={short(callbacks)} is not a list of callbacks: pass one or a list of them"
        )
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

    An extension may provide callbacks with a method `configure_callbacks`, as a module does. A callback of an
    extension is dropped if the trainer has one of the same class.

    Raises:
        ConfigError: the module returned something else, or two callbacks have the same state key.
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
    """Refuse two callbacks with the same state key. A checkpoint would keep only the state of the last one.

    Raises:
        ConfigError: names the key.
    """
    keys: set[str] = set()
    for callback in callbacks:
        if type(callback).state_dict is Callback.state_dict:
            continue
        if callback.state_key in keys:
            raise ConfigError(
                f"two callbacks keep their state under {callback.state_key!r}: remove one, or make them different "
                "(by another monitor, dirpath or filename, or their own state_key)"
            )
        keys.add(callback.state_key)


def refuse_callbacks(run: Run, callbacks: Sequence[Callback]) -> None:
    """Refuse a callback that needs a feature which the run's strategy doesn't declare.

    Raises:
        CombinationError: names the callback, the strategy, and strategies that have the feature.
    """
    for callback in callbacks:
        for feature in callback.needs:
            if feature not in run.capabilities.features:
                raise run.refusal(feature, f"{type(callback).__name__}, which needs {FEATURES[feature]}")
