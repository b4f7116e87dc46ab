"""Checkpoints of `Runtime.save` and `Runtime.load`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stratagem.checkpoint.base import Checkpoint, CheckpointReader
from stratagem.checkpoint.failing import writing
from stratagem.data.rng import capture_rng, restore_rng
from stratagem.errors import CheckpointError
from stratagem.runtime.loop import is_of

if TYPE_CHECKING:
    import torch

    from stratagem.collectives.base import Collectives
    from stratagem.runtime.session import Session
    from stratagem.strategies.prepared import Prepared

_NAMED = re.compile(r"(optimizer/\d+|[^/]+)/")  # the prefix of a parameter's name in a tensor's key


def save_session(session: Session, parts: dict[str, Prepared], path: str, state: Mapping[str, Any]) -> None:
    """Write the prepared modules in `parts`, random number generators and the user's `state`. Collective."""
    session.checkpointer.wait()
    tensors: dict[str, torch.Tensor] = {}
    for name, prepared in parts.items():
        session.guard(prepared).compare("before the checkpoint")
        own = {**prepared.model_tensors(), **prepared.optimizer_tensors()}
        tensors.update((_key(key, name), tensor) for key, tensor in own.items())
    states = {name: prepared.state() for name, prepared in parts.items()}
    checkpoint = Checkpoint(
        tensors=tensors,
        state={
            "prepared": states.get("", {"modules": states}),
            "data_ranks": session.collectives.data.world_size,
            "user": dict(state),
            "strategy": session.run.strategy_name,
            "resume": resumption(
                session.collectives.world_size,
                [f"the program's {name!r}" for name in state],
                {"the data": "your own training loop keeps its place itself, as in the state that it saves"},
            ),
        },
        rank_state={"rng": capture_rng(session.device)},
    )
    with writing(path):
        session.checkpointer.save(path, checkpoint)


def load_session(session: Session, parts: dict[str, Prepared], path: str, verify: bool) -> dict[str, Any]:
    """Restore a checkpoint of `save_session` or of a trainer. Return the user's state. Collective."""
    reader = session.open_checkpoint(path, verify)
    with fitting(reader):
        saved = dict(reader.state["prepared"])
        states = {"": saved} if "" in parts else saved.get("modules", {})
        if states.keys() != parts.keys():
            raise CheckpointError(
                f"{path} has {sorted(states) or 'one module'}, and this run has set up {sorted(parts)}: set up "
                "the same, and give load a state with the keys that save had"
            )
        for name, prepared in parts.items():
            prepared.load(_PartReader(reader, name) if name else reader, dict(states[name]))
        own = reader.rank_state(session.collectives.rank)
        if own is not None and same_ranks(reader, session.collectives):
            restore_rng(own["rng"], session.device)
        return dict(reader.state.get("user", {}))


def _key(key: str, part: str) -> str:
    """Return a tensor's key with `part` before its name, as if the modules were in one nn.ModuleDict."""
    return _NAMED.sub(rf"\g<0>{part}.", key, count=1) if part else key


class _PartReader(CheckpointReader):
    """Reads one module from a checkpoint of several modules."""

    def __init__(self, reader: CheckpointReader, part: str) -> None:
        self.state, self.world_size, self.path = reader.state, reader.world_size, reader.path
        self._reader, self._part = reader, part
        own = {key: _NAMED.match(key) for key in reader.tensors}
        self.tensors = {
            found[0] + key[found.end() + len(part) + 1 :]: reader.tensors[key]
            for key, found in own.items()
            if found is not None and key.startswith(f"{part}.", found.end())
        }

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        return self._reader.rank_state(rank)

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        self._reader.read({_key(key, self._part): tensor for key, tensor in targets.items()})


def resumption(world_size: int, exact: Sequence[str], inexact: Mapping[str, str]) -> dict[str, Any]:
    """Return what a resumed run restores exactly, and what it doesn't, for `stratagem checkpoint inspect`.

    Args:
        world_size: of the run that writes the checkpoint.
        exact: state that is restored bit by bit, in addition to the model, optimizers and generators.
        inexact: state that isn't → the reason.
    """
    ranks = "this process" if world_size == 1 else f"{world_size} ranks, where as many go on"
    own = ["parameters, buffers and the optimizers' states", f"the random number generators of {ranks}"]
    return {"exact": [*own, *exact], "inexact": dict(inexact)}


def states_of(everything: Sequence[Prepared], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to save of a user's `state`: none that were set up, and for objects their `state_dict`."""
    return {
        name: value.state_dict() if hasattr(value, "state_dict") else value
        for name, value in state.items()
        if not is_of(everything, value)
    }


def restore_state(
    own: Sequence[Prepared], saved: dict[str, Any], state: dict[str, Any], path: str
) -> dict[str, Any]:
    """Restore the values of `state` from the saved ones with the same keys. Return the other saved ones.

    Raises:
        CheckpointError: a key of `state` wasn't saved.
    """
    wanted = {name: value for name, value in state.items() if not is_of(own, value)}
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
    """Turn an error while state is restored into an error of the checkpoint.

    Raises:
        CheckpointError: names the checkpoint, `part` and the original error.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{reader.path} can't be restored: {part} doesn't fit this run ({type(error).__name__}: {error}); use "
            "one of the same program, or load its weights alone"
        ) from error


def same_ranks(reader: CheckpointReader, collectives: Collectives) -> bool:
    """Whether each rank reads the same part of the data as when the checkpoint was written.

    Only then may ranks restore their random number generators: ranks that share a copy of the model draw the same
    numbers, and all others different ones.
    """
    saved = (reader.world_size, reader.state.get("data_ranks", reader.world_size))
    return saved == (collectives.world_size, collectives.data.world_size)
