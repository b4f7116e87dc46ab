"""The training in one of Stratagem's own checkpoints: read it from the state, and write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import StoredTensor, Weights, WeightsReader
from stratagem_convert.formats.structure import in_memory
from stratagem_convert.formats.training import StoredOptimizer, Training

OPTIMIZER = "optimizer/"


def training_of(
    state: Mapping[str, Any], rank_state: Mapping[str, Any], tensors: Mapping[str, StoredTensor], path: str
) -> Training | None:
    """Return the training in a checkpoint's state; None if it has no optimizer.

    Args:
        state: state of the run.
        rank_state: state of rank 0.
        tensors: tensors of the checkpoint whose keys begin with `OPTIMIZER`.
        path: name of the checkpoint in error messages.

    Raises:
        CheckpointError: the state isn't in the form that runs write.
    """
    prepared = state.get("prepared")
    described = prepared.get("optimizers") if isinstance(prepared, Mapping) else None
    if not described:
        return None
    progress = state.get("progress", {})
    try:
        epoch, batch, step = (int(progress.get(name, 0)) for name in ("epoch", "batch", "step"))
        optimizers = [
            StoredOptimizer(
                [{**group, "params": [str(name) for name in group["params"]]} for group in each["groups"]],
                {name: dict(values) for name, values in each["values"].items()},
                str(each.get("class", "")),
            )
            for each in described
        ]
        for key, tensor in tensors.items():
            index, _, name_and_state = key.removeprefix(OPTIMIZER).partition("/")
            name, _, its_state = name_and_state.rpartition("/")
            optimizers[int(index)].states.setdefault(name, {})[its_state] = tensor  # type: ignore[attr-defined]  # made of dicts above
        schedulers = list(state.get("schedulers", ()))
        place = (epoch, batch, step)
        if not batch or not _has_read_all(rank_state.get("data"), epoch):
            return Training(optimizers, schedulers, *place)
        if all(each.get("last_epoch") == step for each in schedulers):
            # All schedulers step per optimizer step, so that the end of the epoch changes nothing that a run needs.
            return Training(optimizers, schedulers, epoch + 1, 0, step)
        return Training(optimizers, schedulers, *place, before_end=True)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{path} is damaged: its optimizers aren't in the form of a run's ({type(error).__name__}: {error}); "
            "use another checkpoint"
        ) from error


def _has_read_all(data: Any, epoch: int) -> bool:
    """Return whether a rank's saved position in its data is the end of an epoch, if that is known."""
    if not isinstance(data, Mapping) or data.get("epoch") != epoch:
        return False
    samples, of_epoch = data.get("samples"), data.get("num_samples")
    return isinstance(samples, int) and isinstance(of_epoch, int) and samples >= of_epoch


def training_state(weights: Weights, training: Training, reader: WeightsReader) -> dict[str, Any]:
    """Return the state of a checkpoint from which a fit can resume, for weights of another format.

    What the other format lacks starts over: the epoch's data, random numbers, callbacks.
    """
    training.require_place(weights.path)
    place = f", of which {training.batch} batches were done" if training.batch else ""
    return {
        "kind": "trainer",
        "module": "",
        "progress": {
            "epoch": training.epoch,
            "batch": 0,
            "step": training.step,
            "validated": 0,
            "epoch_is_over": False,
        },
        "data_ranks": 1,
        "prepared": {
            "optimizers": [
                {
                    "class": each.kind,
                    "groups": [in_memory(dict(group), reader) for group in each.groups],
                    "values": {
                        name: values
                        for name, states in each.states.items()
                        if (values := _values(states, reader))
                    },
                }
                for each in training.optimizers
            ],
            "extra": {},
            "precision": {},
        },
        "schedulers": in_memory(list(training.schedulers), reader),
        "callbacks": {},
        "user": {},
        "resume": {
            "exact": [
                "parameters, buffers and the optimizers' states",
                "epoch and step" + (", learning rate schedulers" if training.schedulers else ""),
            ],
            "inexact": {
                "the data": f"its epoch starts over from the first sample{place}",
                "random numbers and callbacks": f"converted from {weights.format}, without them",
            },
        },
        "converted_from": weights.format,
    }


def training_tensors(training: Training) -> dict[str, StoredTensor]:
    """Return the optimizers' tensors by their keys in a checkpoint."""
    return {
        f"{OPTIMIZER}{index}/{name}/{state}": tensor
        for index, optimizer in enumerate(training.optimizers)
        for (name, state), tensor in optimizer.tensors().items()
    }


def _values(states: Mapping[str, Any], reader: WeightsReader) -> dict[str, Any]:
    return {
        key: in_memory(value, reader) for key, value in states.items() if not isinstance(value, StoredTensor)
    }
