"""A trainer's checkpoint: its content, and how a run resumes from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from stratagem import Checkpoint
from stratagem.errors import CheckpointError, ConfigError
from stratagem.sdk.loops import capture_rng, restore_rng
from stratagem.sdk.states import fitting, resumption, same_ranks, writing
from stratagem_trainer.loops.policy import SavedUserState
from stratagem_trainer.saving.load_module import OF_DATA, OF_MODULE
from stratagem_trainer.saving.scheduler_state import named_functions, own_functions
from stratagem_trainer.saving.user_state import OwnState
from stratagem_trainer.stage.hooks import overrides

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem_checkpoint import InitialWeights

    from stratagem import CheckpointReader
    from stratagem_trainer.data.data_module import DataModule
    from stratagem_trainer.data.training import AnyTrainData
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.stage.hooks import HookRunner
    from stratagem_trainer.stage.state import StageState


def save(state: StageState, data: AnyTrainData | None, path: str) -> None:
    """Write a checkpoint of the whole run. Collective."""
    state.guard.compare(f"before the checkpoint of step {state.progress.step}")
    state.metrics.log_late()
    # Write what was logged before the checkpoint, so that a killed run that resumes has all rows.
    state.metrics.flush()
    for logger in state.loggers:
        logger.flush()
    progress = state.progress.to_resume()
    content: dict[str, Any] = {
        "kind": "trainer",
        "module": type(state.module).__qualname__,
        "progress": progress,
        "data_ranks": state.runtime.collectives.data.world_size,
        "prepared": state.prepared.state(),
        "schedulers": [named_functions(schedule.scheduler.state_dict()) for schedule in state.schedules],
        "callbacks": {callback.state_key: callback.state_dict() for callback in state.hooks.callbacks},
        "strategy": state.runtime.session.run.strategy_name,
        "resume": _resumption(state, data),
        **_hyperparameters(state),
        "datamodule": {} if state.datamodule is None else state.datamodule.state_dict(),
    }
    added = OwnState("on_save_checkpoint", {})
    state.hooks("on_save_checkpoint", added)
    content["user"] = dict(added)
    rank_state: dict[str, Any] = {
        "rng": capture_rng(state.runtime.device),
        "metrics": state.metrics.state_dict(),
    }
    if data is not None:
        rank_state["data"] = data.state(progress["epoch"], progress["batch"])
    tensors = {**state.prepared.model_tensors(), **state.prepared.optimizer_tensors()}
    for callback in state.hooks.callbacks:
        callback.save_tensors(tensors)
    with writing(path):
        state.runtime.session.checkpointer.save(path, Checkpoint(tensors, content, rank_state))


def save_weights(state: StageState, path: str) -> None:
    """Write only the parameters and buffers, for evaluations. Collective."""
    state.guard.compare(f"before the checkpoint of step {state.progress.step}")
    tensors = state.prepared.model_tensors()
    for callback in state.hooks.callbacks:
        callback.save_tensors(tensors)
    content = {
        "kind": "weights",
        "module": type(state.module).__qualname__,
        "strategy": state.runtime.session.run.strategy_name,
        "prepared": {"extra": state.prepared.state()["extra"]},
        **_hyperparameters(state),
    }
    added = OwnState("on_save_checkpoint", {})
    # The module may need its additions to use the weights. Callbacks have no part in the weights.
    state.hooks.of_module("on_save_checkpoint", added)
    if added:
        content["user"] = dict(added)
    with writing(path):
        weights = {key: tensor for key, tensor in tensors.items() if key.startswith("model/")}
        state.runtime.session.checkpointer.save(path, Checkpoint(weights, content))


def _resumption(state: StageState, data: AnyTrainData | None) -> dict[str, Any]:
    exact = ["epoch, batch and step" + (", learning rate schedulers" if state.schedules else "")]
    inexact = {} if data is None else data.resumption()
    if data is not None and not inexact:
        exact.append(f"the data, from the next sample on: {data.description}")
    return resumption(state.runtime.world_size, exact, inexact)


def _hyperparameters(state: StageState) -> dict[str, Any]:
    kept = {OF_MODULE: state.module.hyperparameter_state()}
    if state.datamodule is not None:
        kept[OF_DATA] = state.datamodule.hyperparameter_state()
    return kept


def epoch_of(reader: CheckpointReader) -> int:
    """Return the epoch in which a run resumes from a checkpoint."""
    return _saved(reader).progress.epoch


class UserState(SavedUserState):
    """The state that a checkpoint has for the user's module, data module and callbacks.

    Args:
        hooks: hooks of the module and the callbacks.
        datamodule: data module of the stage; None if there is none.
        reader: reader of the checkpoint.
    """

    def __init__(self, hooks: HookRunner, datamodule: DataModule | None, reader: CheckpointReader) -> None:
        self._hooks, self._datamodule, self._reader = hooks, datamodule, reader
        user = reader.state.get("user")
        # `Runtime.save` writes no "user" entry: no module's hook has run.
        self._added = OwnState("on_load_checkpoint", dict(user)) if isinstance(user, Mapping) else None

    def call_module(self) -> None:
        if self._added is not None:
            with fitting(self._reader):
                self._hooks.of_module("on_load_checkpoint", self._added)

    def call_callbacks(self) -> None:
        if self._added is not None:
            with fitting(self._reader):
                self._hooks.of_callbacks("on_load_checkpoint", self._added)

    def restore_datamodule(self) -> None:
        saved = self._reader.state.get("datamodule")
        if self._datamodule is not None and isinstance(saved, Mapping) and saved:
            with fitting(self._reader, "the state of the data module"):
                self._datamodule.load_state_dict(dict(saved))

    def restore_callbacks(self) -> None:
        saved = self._reader.state.get("callbacks")
        if not isinstance(saved, Mapping):
            return  # a checkpoint of weights only
        for callback in self._hooks.callbacks:
            if callback.is_restored_in_evaluations and callback.state_key in saved:
                with fitting(self._reader, f"the state of the callback {callback.state_key!r}"):
                    callback.load_state_dict(saved[callback.state_key])


def load_weights(state: StageState, reader: CheckpointReader) -> None:
    """Load only the parameters and buffers. Collective."""
    refuse_own_loading(state.module)
    with fitting(reader):
        state.prepared.load(reader, dict(reader.state.get("prepared", {})), model_only=True)


def begin_with(state: StageState, weights: InitialWeights) -> None:
    """Load the weights of another run's checkpoint, and print on rank 0 which were loaded. Collective."""
    from stratagem_checkpoint import load_changed

    refuse_own_loading(state.module)
    session = state.runtime.session
    reader = session.open_checkpoint(weights.path, state.settings.verify_checkpoints)
    report = load_changed(state.prepared, reader, state.runtime.collectives, weights)
    if state.runtime.is_main:
        print(f"  {'weights':<12}{report}", file=sys.stderr, flush=True)


def restore(
    state: StageState, reader: CheckpointReader, data: AnyTrainData, user_state: UserState
) -> tuple[Any, Callable[[], None]]:
    """Restore the run to the point at which the checkpoint was written. Collective.

    Returns:
        The state for the data's next epoch, and a function that restores the random number generators. Call it after
        that epoch's iterator was made. Generators aren't restored if ranks now read other shares of the data.
    """
    saved = _saved(reader)
    refuse_own_loading(state.module)
    for callback in state.hooks.callbacks:
        if callback.state_key in saved.callbacks:
            with fitting(reader, f"the state of the callback {callback.state_key!r}"):
                its_state = saved.callbacks[callback.state_key]
                callback.before_restore(state.module, state.prepared.optimizers, its_state)
    with fitting(reader):
        state.prepared.load(reader, saved.prepared)
    if len(saved.schedulers) != len(state.schedules):
        raise CheckpointError(
            f"{reader.path} has {len(saved.schedulers)} learning rate schedulers, and this run has "
            f"{len(state.schedules)}: configure the same ones"
        )
    for schedule, its_state in zip(state.schedules, saved.schedulers):
        with fitting(reader, "a learning rate scheduler's state"):
            scheduler = schedule.scheduler
            scheduler.load_state_dict(own_functions(its_state, scheduler.state_dict()))
    for callback in state.hooks.callbacks:
        if callback.state_key in saved.callbacks:
            with fitting(reader, f"the state of the callback {callback.state_key!r}"):
                callback.load_state_dict(saved.callbacks[callback.state_key])
                callback.load_tensors(state.prepared, reader)
    state.settings.policy.after_restore(user_state)
    progress = state.progress
    for name, value in asdict(saved.progress).items():
        setattr(progress, name, value)
    same = same_ranks(reader, state.runtime.collectives)
    own = dict(reader.rank_state(state.runtime.rank if same else 0) or {})
    data_state = own.get("data")
    with fitting(reader, "the state of its ranks"):
        if data_state is not None and progress.batch:
            before, progress.batch = progress.batch, data.done_after_resume(data_state)
            progress.validated = progress.validated * progress.batch // before
        state.metrics.load_state_dict(own.get("metrics", {}), with_epoch=same)

    def resume() -> None:
        if same and "rng" in own:
            with fitting(reader, "the state of its random number generators"):
                restore_rng(own["rng"], state.runtime.device)

    return data_state, resume


def refuse_own_loading(module: Module) -> None:
    """Refuse to load a checkpoint into a module that overrides `load_state_dict`.

    Raises:
        ConfigError: says what to do instead.
    """
    from stratagem_trainer.module.module import Module

    if overrides(module, "load_state_dict", Module):
        kind = type(module).__qualname__
        raise ConfigError(
            f"{kind} overrides load_state_dict, which isn't called when a trainer reads a checkpoint: tensors are "
            "read in place, in shards under some strategies. For an evaluation, pass what "
            f"{kind}.load_from_checkpoint(…) returns, which calls it; to resume a fit, do in on_load_checkpoint "
            "what it does"
        )


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A whole number. msgspec doesn't accept a bool or a float such as 1.0 for it."""


@dataclass
class _Saved:
    """Type of what `save` writes. Validates untrusted checkpoints."""

    prepared: dict[str, Any]
    progress: _Progress
    data_ranks: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    schedulers: list[Any]
    callbacks: dict[str, Any]
    user: dict[Any, Any]
    datamodule: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Progress:
    """The fields of `Progress`, with the ranges of their values."""

    epoch: _Count
    batch: _Count
    step: _Count
    validated: _Count
    epoch_is_over: bool


def _saved(reader: CheckpointReader) -> _Saved:
    if reader.state.get("kind") == "weights":
        raise CheckpointError(
            f"{reader.path} has only weights, from which no fit can resume: pass it to validate, test or predict, or "
            "pass fit a checkpoint that wasn't saved with weights_only"
        )
    if reader.state.get("kind") != "trainer":
        raise CheckpointError(
            f"{reader.path} was written by Runtime.save and has no trainer's progress: load its weights "
            "with Runtime.load, or pass it to validate, test or predict"
        )
    try:
        return msgspec.convert(dict(reader.state), _Saved)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{reader.path} is damaged: its state isn't a trainer's ({error}); use another checkpoint"
        ) from error
