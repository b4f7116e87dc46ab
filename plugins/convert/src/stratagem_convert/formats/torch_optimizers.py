"""States of torch's optimizers, whose parameters are numbers, under the names of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import StoredTensor
from stratagem_convert.formats.training import StoredOptimizer

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of torch's norms; state dicts don't distinguish them from parameters."""
_OF_ITS_SHAPE = frozenset(
    {
        *(
            "exp_avg",
            "exp_avg_sq",
            "max_exp_avg_sq",
            "momentum_buffer",
            "square_avg",
            "grad_avg",
            "acc_delta",
        ),
        *("sum", "exp_inf", "ax", "prev", "step_size"),
    }
)
"""States of torch's optimizers that have the shape of their parameter."""


def optimizer_of_torch(
    state: Any, names: Sequence[str] | None, stored: Callable[[str, Any], Any], shown: str
) -> StoredOptimizer | None:
    """What an optimizer's `state_dict()` has, under the names of its parameters; None where it doesn't tell them.

    Args:
        state: as torch's optimizers return it.
        names: of its parameters in their order; None takes the groups' own "param_names".
        stored: makes of a state or a group what `StoredOptimizer.states` has, called with its name.
        shown: how errors name the file.

    Raises:
        CheckpointError: it is no such state, or has other parameters than `names`.
    """
    try:
        groups, states = state["param_groups"], state["state"]
        numbers = [number for group in groups for number in group["params"]]
        if names is None:
            if not all("param_names" in group for group in groups):
                return None
            names = [str(name) for group in groups for name in group["param_names"]]
        if len(set(numbers)) != len(numbers) or not {*states} <= {*numbers}:
            raise ValueError("its states are of other parameters than its groups")
        named = dict(zip(numbers, names, strict=True))
        return StoredOptimizer(
            [
                {**stored("param_groups", group), "params": [named[number] for number in group["params"]]}
                for group in groups
            ],
            {
                named[number]: {
                    str(key): stored(f"{named[number]}/{key}", value) for key, value in each.items()
                }
                for number, each in states.items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{shown} is damaged: an optimizer's state in it isn't as torch has it "
            f"({type(error).__name__}: {error}); use another, or --weights-only"
        ) from error


def optimizer_in_order(
    states: Sequence[Any],
    tensors: Mapping[str, StoredTensor],
    stored: Callable[[str, Any], Any],
    shown: str,
) -> StoredOptimizer:
    """What the only optimizer has, whose parameters are those of a state dict, in its order; shapes are compared.

    Args:
        states: what torch's optimizers return.
        tensors: of the state dict.
        stored: as for `optimizer_of_torch`.
        shown: how errors name the file.

    Raises:
        CheckpointError: there are several, or it can't be so.
    """
    names = [
        name
        for name, tensor in tensors.items()
        if tensor.dtype.is_floating_point and name.rpartition(".")[2] not in _BUFFERS
    ]
    try:
        count = sum(len(group["params"]) for group in states[0]["param_groups"])
    except (KeyError, TypeError, IndexError):
        count = -1
    if len(states) != 1 or count != len(names):
        raise CheckpointError(
            f"{shown} has {len(states)} optimizers, the first with {count} parameters, and its state dict has "
            f"{len(names)} that may be: --in-order can't tell whose states they are; leave it out"
        )
    optimizer = optimizer_of_torch(states[0], names, stored, shown)
    assert optimizer is not None
    known = 0
    for (name, state), tensor in optimizer.tensors().items():
        known += state in _OF_ITS_SHAPE
        if state in _OF_ITS_SHAPE and tensor.shape != tensors[name].shape:
            raise CheckpointError(
                f"{shown} has a state {state!r} of shape {list(tensor.shape)} where {name!r} with "
                f"{list(tensors[name].shape)} would be: its optimizer has another order; leave out --in-order"
            )
    if optimizer.tensors() and not known:
        raise CheckpointError(
            f"{shown} has an optimizer whose states don't show their parameters' shapes: leave out --in-order"
        )
    return optimizer
