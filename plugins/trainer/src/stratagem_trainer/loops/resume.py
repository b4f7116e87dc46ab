"""A trainer's checkpoint: what goes in, and how a run continues from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from stratagem import Checkpoint
from stratagem.errors import CheckpointError
from stratagem.sdk.loops import capture_rng, restore_rng
from stratagem.sdk.states import Count, fitting, same_ranks, writing
from stratagem_trainer.loops.scheduler_state import named_functions, own_functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem import CheckpointReader
    from stratagem.sdk.loops import TrainData
    from stratagem_trainer.live import Live
    from stratagem_trainer.trainer import Trainer


def save(trainer: Trainer, live: Live, data: TrainData | None, path: str) -> None:
    """Write a checkpoint of the whole run. Collective."""
    live.guard.compare(f"before the checkpoint of step {live.progress.step}")
    live.metrics.log_late()
    # What was logged before a checkpoint is on disk with it: a killed run that continues lacks no row.
    live.metrics.flush()
    for logger in live.loggers:
        logger.flush()
    progress = live.progress.to_resume()
    state: dict[str, Any] = {
        "kind": "trainer",
        "module": type(live.module).__qualname__,
        "progress": progress,
        "data_ranks": live.runtime.collectives.data.world_size,
        "prepared": live.prepared.state(),
        "schedulers": [named_functions(schedule.scheduler.state_dict()) for schedule in live.schedules],
        "callbacks": {callback.state_key: callback.state_dict() for callback in live.moments.callbacks},
        "user": {},
    }
    live.moments("on_save_checkpoint", trainer, live.module, state["user"])
    rank_state: dict[str, Any] = {
        "rng": capture_rng(live.runtime.device),
        "metrics": live.metrics.state_dict(),
    }
    if data is not None:
        rank_state["data"] = data.state(progress["epoch"], progress["batch"])
    tensors = {**live.prepared.model_tensors(), **live.prepared.optimizer_tensors()}
    with writing(path):
        live.runtime.session.checkpointer.save(path, Checkpoint(tensors, state, rank_state))


def load_weights(live: Live, reader: CheckpointReader) -> None:
    """Take up the parameters and buffers alone. Collective."""
    with fitting(reader):
        live.prepared.load(reader, dict(reader.state.get("prepared", {})), model_only=True)


def restore(
    trainer: Trainer, live: Live, reader: CheckpointReader, data: TrainData
) -> tuple[Any, Callable[[], None]]:
    """Bring a run to where the checkpoint was written. Collective.

    Returns:
        The state to give to the data's next epoch, and what restores the random number generators
        once that epoch's iterator exists. Generators start again where ranks are otherwise many, or read
        other parts of the data.
    """
    state = _state(reader)
    with fitting(reader):
        live.prepared.load(reader, state.prepared)
    if len(state.schedulers) != len(live.schedules):
        raise CheckpointError(
            f"{reader.path} has {len(state.schedulers)} learning rate schedulers, and this run has "
            f"{len(live.schedules)}: configure the same ones"
        )
    for schedule, saved in zip(live.schedules, state.schedulers):
        with fitting(reader, "a learning rate scheduler's state"):
            scheduler = schedule.scheduler
            scheduler.load_state_dict(own_functions(saved, scheduler.state_dict()))
    for callback in live.moments.callbacks:
        if callback.state_key in state.callbacks:
            with fitting(reader, f"the state of the callback {callback.state_key!r}"):
                callback.load_state_dict(state.callbacks[callback.state_key])
    live.moments("on_load_checkpoint", trainer, live.module, state.user)
    for name, value in asdict(state.progress).items():
        setattr(live.progress, name, value)
    same = same_ranks(reader, live.runtime.collectives)
    own = dict(reader.rank_state(live.runtime.rank if same else 0) or {})
    data_state = own.get("data")
    with fitting(reader, "the state of its ranks"):
        if data_state is not None and live.progress.batch:
            before, live.progress.batch = live.progress.batch, data.done_after_resume(data_state)
            live.progress.validated = live.progress.validated * live.progress.batch // before
        live.metrics.load_state_dict(own.get("metrics", {}), with_epoch=same)

    def resume() -> None:
        if same and "rng" in own:
            with fitting(reader, "the state of its random number generators"):
                restore_rng(own["rng"], live.runtime.device)

    return data_state, resume


@dataclass
class _State:
    """What `save` writes, by type; a checkpoint of anybody is held against it."""

    prepared: dict[str, Any]
    progress: _Progress
    data_ranks: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    schedulers: list[Any]
    callbacks: dict[str, Any]
    user: dict[Any, Any]


@dataclass
class _Progress:
    """As `Progress`, with the ranges of its numbers."""

    epoch: Count
    batch: Count
    step: Count
    validated: Count
    epoch_is_over: bool


def _state(reader: CheckpointReader) -> _State:
    if reader.state.get("kind") != "trainer":
        raise CheckpointError(
            f"{reader.path} was written by Runtime.save and has no trainer's progress: load its weights "
            "with Runtime.load, or pass it to validate, test or predict"
        )
    try:
        return msgspec.convert(dict(reader.state), _State)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{reader.path} is damaged: its state isn't a trainer's ({error}); use another checkpoint"
        ) from error
