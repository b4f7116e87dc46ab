"""Trainings in folders of torch.distributed.checkpoint, in the form of `get_optimizer_state_dict` and dcp.save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import StoredTensor, Weights
from stratagem_convert.formats.training import BATCH, EPOCH, SCHEDULERS, STEP, StoredOptimizer, Training

MODEL, OPTIM = "model", "optim"
_GROUPS = "optimizer_groups"
"""Entry with the number of each optimizer's parameter groups. The groups of all optimizers are in one list."""
Path = tuple[Any, ...]
"""Keys and indices that lead to a value. DCP joins them with dots."""


def leaves(weights: Weights) -> Iterator[tuple[Path, Any]]:
    """Yield the values of a folder with their paths: only weights, or weights and a training."""
    training = weights.training
    if training is None:
        yield from (((name,), weights.stored(name)) for name in weights.names())
        return
    yield from (((MODEL, name), weights.stored(name)) for name in weights.names())
    states: dict[str, Any] = {}
    for each in training.optimizers:
        states.update(each.states)
    groups = [dict(group) for each in training.optimizers for group in each.groups]
    yield from _leaves((OPTIM,), {"state": states, "param_groups": groups})
    others = {
        SCHEDULERS: list(training.schedulers),
        EPOCH: training.epoch,
        BATCH: training.batch,
        STEP: training.step,
        _GROUPS: [len(each.groups) for each in training.optimizers],
    }
    yield from _leaves((), others)


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Flatten a value as DCP does: dicts, and lists that contain dicts or tensors.

    In addition, values that DCP couldn't restore are kept whole: empty dicts, and dicts with other keys than text,
    which DCP would convert to text.
    """
    if isinstance(value, Mapping):
        if not value or type(value) is not dict or not all(isinstance(key, str) for key in value):
            yield path, value
        for key, each in value.items():
            yield from _leaves((*path, str(key)), each)
    elif isinstance(value, list) and any(isinstance(each, (Mapping, list, StoredTensor)) for each in value):
        for index, each in enumerate(value):
            yield from _leaves((*path, index), each)
    else:
        yield path, value


def training_of(
    paths: Mapping[str, Path], base: Path, value_of: Callable[[str], Any], shown: str
) -> Training | None:
    """Return the training in a folder; None if it has no optimizer in the form of `get_optimizer_state_dict`.

    Args:
        paths: name of an entry → path to its value.
        base: the path under which `OPTIM` is.
        value_of: returns an entry's value; a tensor as a `StoredTensor`.
        shown: name of the folder in error messages.

    Raises:
        CheckpointError: there is one, but it is incomplete.
    """
    optim, others = _Node(), _Node()
    known = set(paths.values())
    for name, path in paths.items():
        if any(path[:length] in known for length in range(1, len(path))):
            continue  # it is part of a value that is stored whole
        if SCHEDULERS in path and any(isinstance(each, str) and each.lstrip("-").isdigit() for each in path):
            raise CheckpointError(
                f"{shown} has a learning rate scheduler with numbers for keys, which DCP made text ({name!r}): "
                "convert with --weights-only"
            )
        if path[: len(base) + 1] == (*base, OPTIM):
            _put(optim, path[len(base) + 1 :], value_of(name))
        elif path[: len(base)] == base and path[len(base) : len(base) + 1] in {
            (each,) for each in (SCHEDULERS, EPOCH, BATCH, STEP, _GROUPS)
        }:
            _put(others, path[len(base) :], value_of(name))
    groups = _in_lists(optim.get("param_groups"))
    if not isinstance(groups, list) or not all(
        isinstance(each, dict) and "params" in each for each in groups
    ):
        return None
    try:
        states = {str(name): dict(each) for name, each in (_in_lists(optim.get("state")) or {}).items()}
        optimizers, first = [], 0
        for count in others.get(_GROUPS, [len(groups)]):
            own: Sequence[Any] = groups[first : first + count]
            names = {name for group in own for name in group["params"]}
            own_states = {name: each for name, each in states.items() if name in names}
            optimizers.append(StoredOptimizer(own, own_states))
            first += count
        if first != len(groups) or sum(len(each.states) for each in optimizers) != len(states):
            raise ValueError("its states belong to other parameters than its groups")
        epoch, batch, step = (int(others.get(entry, 0)) for entry in (EPOCH, BATCH, STEP))
        return Training(optimizers, _in_lists(others.get(SCHEDULERS, [])), epoch, batch, step)
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{shown} is damaged: its optimizer's state isn't as torch has it ({type(error).__name__}: {error}); "
            "use another, or --weights-only"
        ) from error


class _Node(dict[Any, Any]):
    """A dict that `_put` builds from several entries, unlike a dict that is stored whole."""


def _put(into: _Node, path: Path, value: Any) -> None:
    for key in path[:-1]:
        into = into.setdefault(key, _Node())
    if path:
        into[path[-1]] = value


def _in_lists(value: Any) -> Any:
    """Convert the nodes that `_put` has made to lists and dicts."""
    if not isinstance(value, _Node):
        return value
    if value and all(type(key) is int for key in value) and sorted(value) == list(range(len(value))):
        return [_in_lists(value[index]) for index in range(len(value))]
    return {key: _in_lists(each) for key, each in value.items()}
