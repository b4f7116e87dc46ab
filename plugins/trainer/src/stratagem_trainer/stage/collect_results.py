"""Copy a trained module's state from the workers into the module of the launching process.

The state goes through a folder on the launching process's machine. stratagem-checkpoint's `DirectoryCheckpointer`
always writes it, even if the run's checkpointer is another one that encrypts, or stores files elsewhere.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from stratagem_launch import folder_lock
from torch import nn
from torch.nn.parameter import is_lazy

from stratagem import Checkpoint
from stratagem.errors import CheckpointError, CombinationError
from stratagem.sdk.torch_private import tensor_version

if TYPE_CHECKING:
    from stratagem import CheckpointReader, Prepared, Runtime

PREFIX = "model/"
SEVERAL_NODES = "it was trained on several nodes, and a node can't read the files of another"

_UNTRAINED: WeakKeyDictionary[nn.Module, _Untrained] = WeakKeyDictionary()
"""Modules that were trained in workers, and whose trained values were not copied back."""


@dataclass(frozen=True)
class _Untrained:
    reason: str
    versions: tuple[tuple[int, int], ...]
    """Version counters of its parameters and buffers, which change if values are loaded."""


@dataclass(frozen=True)
class Destination:
    """Where workers write the state of a module that the launching process also has."""

    path: str
    names: frozenset[str]
    """Names of all tensors in the module's state."""


@contextmanager
def destination(module: Any) -> Iterator[Destination | None]:
    """Create a folder for the state of `module`, removed at the end; None if each worker constructs the module.

    Also removes such folders of processes that were killed.
    """
    if not isinstance(module, nn.Module):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="stratagem-weights-") as folder, folder_lock(folder):
        yield Destination(os.path.join(folder, "weights"), frozenset(_tensors(module)))


def save_results(runtime: Runtime, prepared: Prepared, where: Destination) -> str | None:
    """Write the state that `load_results` reads. Called in the workers. Collective.

    Returns:
        The reason why the state can't be copied back, equal on all ranks; None if it was written.
    """
    from stratagem_checkpoint import DirectoryCheckpointer

    environment = runtime.session.run.environment
    if environment.local_world_size < environment.world_size:
        return SEVERAL_NODES
    tensors = prepared.model_tensors()
    names = {key.removeprefix(PREFIX) for key in prepared.model_names(tensors)}
    if names != where.names:
        kind = type(prepared.original_module).__name__
        return (
            f"the trained {kind} has {_some(names - where.names)} and the one that was passed to fit has "
            f"{_some(where.names - names)} instead, as when configure_model adds layers only in the workers"
        )
    held = {
        name: parameter.requires_grad
        for name, parameter in prepared.original_module.named_parameters(remove_duplicate=False)
        if f"{PREFIX}{name}" in tensors
    }
    gathered = runtime.collectives.gather_objects(held)
    state = {
        "requires_grad": {name: value for of_rank in reversed(gathered) for name, value in of_rank.items()},
        "extra": prepared.state().get("extra", {}),
    }
    try:
        DirectoryCheckpointer(runtime.collectives).save(where.path, Checkpoint(tensors, state))
    except CheckpointError as error:
        return str(error)
    return None


def load_results(module: nn.Module, where: Destination) -> str | None:
    """Copy the state that workers wrote into `module`, with the workers' dtypes and shapes.

    Returns:
        The reason why it can't be copied; None if it was.
    """
    from stratagem_checkpoint import DirectoryCheckpointer

    from stratagem import LocalCollectives

    try:
        reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(where.path)
        with torch.no_grad():
            _fill(module, reader)
    except (CheckpointError, RuntimeError) as error:
        return str(error)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in reader.state["requires_grad"]:
            parameter.requires_grad_(reader.state["requires_grad"][name])
    return None


def say_untrained(module: nn.Module, reason: str) -> None:
    """Warn that `module` isn't trained here, and remember it for `refuse_untrained`."""
    warnings.warn(
        f"this process's {type(module).__name__} keeps the values that it had before fit: {reason}; load a "
        "checkpoint of the run, or pass it as ckpt_path",
        UserWarning,
        stacklevel=4,
    )
    _UNTRAINED[module] = _Untrained(reason, _versions(module))


def refuse_untrained(module: Any, stage: str) -> None:
    """Refuse a module that has the values from before a fit, unless others were loaded since.

    Raises:
        CombinationError: says why the trained values weren't copied back, and what to pass.
    """
    known = _UNTRAINED.get(module) if isinstance(module, nn.Module) else None
    if known is not None and known.versions == _versions(module):
        raise CombinationError(
            f"{stage} got a {type(module).__name__} whose trained values stayed in the workers of the previous fit "
            f"({known.reason}): pass ckpt_path with a checkpoint of that fit"
        )


def _fill(module: nn.Module, reader: CheckpointReader) -> None:
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    computed: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(module).items():
        info = reader.tensors[PREFIX + name]
        if id(tensor) not in own:  # computed by a state_dict hook
            computed[name] = torch.empty(info.shape, dtype=info.dtype)
        elif is_lazy(tensor):
            tensor.materialize(info.shape, dtype=info.dtype)
        elif (tuple(tensor.shape), tensor.dtype) != (info.shape, info.dtype):
            # As nn.Module.to does: keep the parameter object, because others hold references to it.
            tensor.grad = None
            tensor.data = torch.empty(info.shape, dtype=info.dtype, device=tensor.device)
    placed = {name: tensor.detach() for name, tensor in _tensors(module).items() if name not in computed}
    reader.read({PREFIX + name: tensor for name, tensor in (placed | computed).items()})
    if computed or reader.state["extra"]:
        # Only load_state_dict calls set_extra_state and the module's load_state_dict hooks.
        module.load_state_dict({**module.state_dict(), **computed, **reader.state["extra"]})


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _versions(module: nn.Module) -> tuple[tuple[int, int], ...]:
    return tuple((id(each), tensor_version(each)) for each in (*module.parameters(), *module.buffers()))


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:3]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{more}" if names else "nothing"
