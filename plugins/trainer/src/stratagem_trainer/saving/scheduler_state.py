"""States of learning rate schedulers in checkpoints. Checkpoints hold no code, so functions are saved by name."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from stratagem.errors import CheckpointError

_NAME = "name of a function"


def named_functions(state: Any) -> Any:
    """Return a scheduler's state with functions replaced by their names. In torch 2.9, SWALR's state has one.

    A lambda or nested function has no unique name. It is left in the state, and rejected when the state is written.
    """
    if isinstance(state, FunctionType) and "<" not in state.__qualname__:
        return {_NAME: _name(state)}
    if isinstance(state, dict):
        return {key: named_functions(value) for key, value in state.items()}
    return [named_functions(each) for each in state] if type(state) is list else state


def own_functions(saved: Any, own: Any) -> Any:
    """Return what `named_functions` returned, with names replaced by the scheduler's own functions.

    Args:
        saved: the saved state.
        own: the state of the scheduler that is being restored.

    Raises:
        CheckpointError: the scheduler has another function there.
    """
    if isinstance(saved, dict):
        if set(saved) == {_NAME}:
            found = _name(own) if isinstance(own, FunctionType) else "none"
            if found != saved[_NAME]:
                raise CheckpointError(
                    f"a learning rate scheduler was saved with the function {saved[_NAME]}, and this run's has "
                    f"{found}: configure the same one"
                )
            return own
        inner = own if isinstance(own, dict) else {}
        return {key: own_functions(value, inner.get(key)) for key, value in saved.items()}
    if type(saved) is list:
        others = own if type(own) is list and len(own) == len(saved) else [None] * len(saved)
        return [own_functions(value, other) for value, other in zip(saved, others)]
    return saved


def _name(function: FunctionType) -> str:
    return f"{function.__module__}.{function.__qualname__}"
