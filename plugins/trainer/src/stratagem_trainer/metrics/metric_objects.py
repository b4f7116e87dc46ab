"""Metric objects of torchmetrics: reduce their states over ranks, and save and restore them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem.errors import LoggingError, short
from stratagem.sdk.tensors import map_tensors
from stratagem_trainer.metrics.torchmetrics_private import (
    count_of_updates,
    reductions_of,
    set_states,
    value_of_batch,
)

if TYPE_CHECKING:
    from stratagem import Collectives

States = dict[str, list[Any]]
"""Path of a metric object → [values of its states by name, number of its updates]."""


def is_metric_object(value: object) -> bool:
    """Return whether `value` is a torchmetrics.Metric. Doesn't import torchmetrics."""
    library = sys.modules.get("torchmetrics")
    return library is not None and isinstance(value, library.Metric)


def objects_in(module: nn.Module) -> dict[str, nn.Module]:
    """Return the metric objects of a module by path, nested ones included."""
    if "torchmetrics" not in sys.modules:
        return {}
    return {name: each for name, each in module.named_modules() if is_metric_object(each)}


def named_values(values: Any) -> Iterable[tuple[str, Any]]:
    """Return the items of a mapping; of a MetricCollection its metric objects, by the collection's names."""
    library = sys.modules.get("torchmetrics")
    if library is not None and isinstance(values, library.MetricCollection):
        # This also updates metric objects that share states.
        return list(values.items(keep_base=False, copy_state=False))
    return list(values.items())


def value_of_step(name: str, metric: Any) -> torch.Tensor:
    """Return a metric object's value of this step's batch, a 0-dim tensor.

    Raises:
        LoggingError: the metric object has no such value, or the value isn't a number.
    """
    value = value_of_batch(metric)
    if value is None:
        raise LoggingError(
            f"{name!r} is logged for this step with a {type(metric).__name__} that has no value of this batch: call "
            "it, as self.accuracy(scores, targets), not its update, or log it with on_step=False, on_epoch=True"
        )
    refuse_unless_scalar(name, value)
    return torch.as_tensor(value).detach().clone().reshape(())


def refuse_unless_scalar(name: str, value: Any) -> None:
    """Refuse a tensor with several elements.

    Raises:
        LoggingError: names the tensor's shape.
    """
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise LoggingError(
            f"{name!r} has shape {tuple(value.shape)}: log a number, or a tensor with one element"
        )


def path_in(module: nn.Module, metric: nn.Module, name: str, given: str | None) -> str:
    """Return the path of a logged metric object within the module.

    Args:
        module: the user's module.
        metric: the logged metric object.
        name: the name under which it was logged.
        given: the path that the user gave; None if there is none.

    Raises:
        LoggingError: the metric object isn't at that path, or not in the module.
    """
    found = [path for path, each in objects_in(module).items() if each is metric]
    if not found or (given is not None and given not in found):
        where = f"metric_attribute={given!r}" if found or given is not None else "an attribute"
        raise LoggingError(
            f"{name!r} is logged with a {type(metric).__name__} that isn't {where} of the module: keep it as an "
            "attribute, as self.accuracy, so that ranks and checkpoints find it"
        )
    return given or found[0]


def collect_states(module: nn.Module, within: Collection[str] | None = None) -> States:
    """Copy the states of a module's updated metric objects to the CPU.

    Args:
        module: the user's module.
        within: paths of metric objects; copies only their states, and those of the metric objects nested in them.
    """
    return {
        path: [_copied(_states(each), "cpu"), count_of_updates(each)]
        for path, each in objects_in(module).items()
        if count_of_updates(each)
        and (within is None or any(f"{path}.".startswith(f"{other}.") for other in within))
    }


def restore_states(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Restore what `collect_states` returned; reset all other states."""
    for path, each in objects_in(module).items():
        if path in saved:
            states, updates = saved[path]
            set_states(each, _copied(states, each.device), int(updates))
        elif count_of_updates(each):
            each.reset()  # type: ignore[operator]  # a torchmetrics.Metric


@contextmanager
def states_kept(module: nn.Module, only_after_error: bool = False) -> Iterator[None]:
    """Restore the states of the module's metric objects at the end. A context manager.

    Args:
        module: the module that has the metric objects.
        only_after_error: restore them only if the context is left by an error.
    """
    kept = {
        path: (_copied(_states(each)), count_of_updates(each)) for path, each in objects_in(module).items()
    }
    is_restored = True
    try:
        yield
        is_restored = not only_after_error
    finally:
        for path, each in objects_in(module).items():
            if is_restored and path in kept:
                set_states(each, *kept[path])


def computed(
    objects: Mapping[str, tuple[nn.Module, str]], module: nn.Module, collectives: Collectives
) -> dict[str, tuple[str, float]]:
    """Compute logged metric objects over all ranks, and reset them. Collective, also on a rank that has none.

    All states are sent in one message. A rank that logged nothing finds the objects in its module by the paths that
    the other ranks send.

    Args:
        objects: name → a metric object that was logged on this rank, and the key for its value.
        module: the module that has the metric objects.
        collectives: of the ranks that read different batches.

    Returns:
        Key and value by name; equal on all ranks.
    """
    paths = {id(each): path for path, each in objects_in(module).items()}
    named = {name: (paths[id(each)], key) for name, (each, key) in objects.items()}
    alone = collectives.world_size == 1
    own = {} if alone else collect_states(module, [path for path, _ in named.values()])
    gathered = [] if alone else collectives.gather_objects((named, own))
    states = None
    if not alone:
        named = {name: where for theirs, _ in reversed(gathered) for name, where in theirs.items()}
        states = [each for _, each in gathered]
    values = {}
    for name, (path, key) in named.items():
        metric = module.get_submodule(path)
        with nullcontext() if states is None else _merged(metric, path, states), _by_itself(metric):
            values[name] = key, _scalar(name, metric.compute())  # type: ignore[operator]  # a torchmetrics.Metric
    for path, _ in named.values():
        module.get_submodule(path).reset()  # type: ignore[operator]  # a torchmetrics.Metric
    return values


def _scalar(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) and not (isinstance(value, torch.Tensor) and value.numel() == 1):
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else short(value)
        raise LoggingError(
            f"{name!r} is a metric object that computes {what}: log one that computes a number, or log numbers of it "
            "in on_validation_epoch_end and its like"
        )
    return float(value)


@contextmanager
def _merged(metric: nn.Module, path: str, ranks: list[States]) -> Iterator[None]:
    """Give a metric object and those within it the merged states of all ranks; restore their own afterwards."""
    kept: list[tuple[nn.Module, dict[str, Any], int]] = []
    for inner, each in metric.named_modules(prefix=path):
        if not is_metric_object(each):
            continue
        own = _states(each)
        # A rank without updates still has its initial states, and sends none.
        there = [rank[inner] for rank in ranks if inner in rank]
        if there:
            reductions = reductions_of(each)
            merged = {
                name: _reduced([_copied(states[name], each.device) for states, _ in there], reductions[name])
                for name in own
            }
            kept.append((each, own, count_of_updates(each)))
            set_states(each, merged, sum(updates for _, updates in there))
    try:
        yield
    finally:
        for each, own, updates in kept:
            set_states(each, own, updates)


def _reduced(values: list[Any], reduction: Any) -> Any:
    if isinstance(values[0], list):
        joined = [item for value in values for item in value]
        return reduction(joined) if joined and reduction is not None else joined
    stacked = torch.stack(values)
    return reduction(stacked) if reduction is not None else stacked


@contextmanager
def _by_itself(metric: nn.Module) -> Iterator[None]:
    """Let a metric object and those within it compute without communicating with other ranks."""
    inner = list(objects_in(metric).values())
    kept = [each.distributed_available_fn for each in inner]
    for each in inner:
        each.distributed_available_fn = _no_ranks  # type: ignore[assignment]  # a torchmetrics.Metric
    try:
        yield
    finally:
        for each, function in zip(inner, kept):
            each.distributed_available_fn = function


def _no_ranks() -> bool:
    return False


def _states(metric: nn.Module) -> dict[str, Any]:
    return dict(metric.metric_state)  # type: ignore[arg-type]  # a torchmetrics.Metric


def _copied(states: Any, device: Any = None) -> Any:
    return map_tensors(
        lambda tensor: tensor.detach().clone() if device is None else tensor.detach().to(device, copy=True),
        states,
    )
