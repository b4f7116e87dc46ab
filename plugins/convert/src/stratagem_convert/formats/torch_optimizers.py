"""States of torch's optimizers. Their parameters are numbers there, and names here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import StoredTensor
from stratagem_convert.formats.training import StoredOptimizer

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of torch's normalization layers. State dicts don't distinguish them from parameters."""
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
    """Return the content of an optimizer's `state_dict()` by parameter names; None if there are no names.

    Args:
        state: what the optimizer's `state_dict` returned.
        names: names of its parameters, in order; None uses the groups' own "param_names".
        stored: converts a state or a group for `StoredOptimizer`; called with its name and value.
        shown: name of the file in error messages.

    Raises:
        CheckpointError: it isn't such a state, or has other parameters than `names`.
    """
    try:
        groups, states = state["param_groups"], state["state"]
        numbers = [number for group in groups for number in group["params"]]
        if names is None:
            if not all("param_names" in group for group in groups):
                return None
            names = [str(name) for group in groups for name in group["param_names"]]
        if len(set(numbers)) != len(numbers) or not {*states} <= {*numbers}:
            raise ValueError("its states belong to other parameters than its groups")
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
            f"{shown} is damaged: an optimizer's state in it isn't in torch's form "
            f"({type(error).__name__}: {error}); use another, or --weights-only"
        ) from error


def optimizer_in_order(
    states: Sequence[Any],
    tensors: Mapping[str, StoredTensor],
    stored: Callable[[str, Any], Any],
    shown: str,
) -> StoredOptimizer:
    """Return the content of the only optimizer, whose parameters are those of a state dict, in the same order.

    Shapes of states are compared with those of the parameters.

    Args:
        states: what the optimizers' `state_dict` returned.
        tensors: tensors of the state dict.
        stored: as for `optimizer_of_torch`.
        shown: name of the file in error messages.

    Raises:
        CheckpointError: there are several optimizers, or the order or the shapes don't match.
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
            f"{len(names)} candidates: --in-order can't match them; leave it out"
        )
    optimizer = optimizer_of_torch(states[0], names, stored, shown)
    assert optimizer is not None
    known = 0
    for (name, state), tensor in optimizer.tensors().items():
        known += state in _OF_ITS_SHAPE
        if state in _OF_ITS_SHAPE and tensor.shape != tensors[name].shape:
            raise CheckpointError(
                f"{shown} has a state {state!r} of shape {list(tensor.shape)}, but {name!r} has the shape "
                f"{list(tensors[name].shape)}: its optimizer has another order; leave out --in-order"
            )
    if optimizer.tensors() and not known:
        raise CheckpointError(
            f"{shown} has an optimizer whose states don't have their parameters' shapes: leave out --in-order"
        )
    return optimizer
