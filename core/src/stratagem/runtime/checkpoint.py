"""What `Runtime.save` writes and `Runtime.load` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stratagem.checkpoint.base import Checkpoint
from stratagem.checkpoint.failing import writing
from stratagem.data.rng import capture_rng, restore_rng
from stratagem.errors import CheckpointError
from stratagem.runtime.loop import is_of

if TYPE_CHECKING:
    from stratagem.checkpoint.base import CheckpointReader
    from stratagem.collectives.base import Collectives
    from stratagem.runtime.session import Session
    from stratagem.strategies.prepared import Prepared


def save_session(session: Session, prepared: Prepared, path: str, state: Mapping[str, Any]) -> None:
    """Write tensors, generators and the user's `state`. Collective."""
    session.checkpointer.wait()
    session.guard(prepared).compare("before the checkpoint")
    checkpoint = Checkpoint(
        tensors={**prepared.model_tensors(), **prepared.optimizer_tensors()},
        state={
            "prepared": prepared.state(),
            "data_ranks": session.collectives.data.world_size,
            "user": dict(state),
        },
        rank_state={"rng": capture_rng(session.device)},
    )
    with writing(path):
        session.checkpointer.save(path, checkpoint)


def load_session(session: Session, prepared: Prepared, path: str, verify: bool) -> dict[str, Any]:
    """Read what `save_session` or a trainer wrote; return the user's state. Collective."""
    reader = session.open_checkpoint(path, verify)
    with fitting(reader):
        prepared.load(reader, dict(reader.state["prepared"]))
        own = reader.rank_state(session.collectives.rank)
        if own is not None and same_ranks(reader, session.collectives):
            restore_rng(own["rng"], session.device)
        return dict(reader.state.get("user", {}))


def states_of(prepared: Prepared, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what there is to keep of a user's `state`: not what was set up, and of objects their `state_dict`."""
    return {
        name: value.state_dict() if hasattr(value, "state_dict") else value
        for name, value in state.items()
        if not is_of(prepared, value)
    }


def take_up(prepared: Prepared, saved: dict[str, Any], state: dict[str, Any], path: str) -> dict[str, Any]:
    """Give `state` what was saved by its keys; return the rest.

    Raises:
        CheckpointError: a key is missing.
    """
    wanted = {name: value for name, value in state.items() if not is_of(prepared, value)}
    missing = sorted(map(str, wanted.keys() - saved.keys()))
    if missing:
        raise CheckpointError(
            f"{path} has no {missing[0]!r} in its state, but {sorted(saved)}: ask for these"
        )
    for name, value in wanted.items():
        if hasattr(value, "load_state_dict"):
            value.load_state_dict(saved[name])
        else:
            state[name] = saved[name]
    return {name: value for name, value in saved.items() if name not in wanted}


@contextmanager
def fitting(reader: CheckpointReader, part: str = "its state") -> Iterator[None]:
    """What a checkpoint holds, and whoever is given it can't take up, is the checkpoint's fault.

    Raises:
        CheckpointError: names the checkpoint, `part` and the error that came of it.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{reader.path} can't be taken up: {part} doesn't fit this run ({type(error).__name__}: {error}); use "
            "one of the same program, or load its weights alone"
        ) from error


def same_ranks(reader: CheckpointReader, collectives: Collectives) -> bool:
    """Whether each rank reads the part of the data that it read when the checkpoint was written.

    Only then is what it drew there its own to draw: ranks that share a copy of the model draw alike, and
    all others apart.
    """
    saved = (reader.world_size, reader.state.get("data_ranks", reader.world_size))
    return saved == (collectives.world_size, collectives.data.world_size)
