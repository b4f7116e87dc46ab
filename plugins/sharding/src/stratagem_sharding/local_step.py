"""`LocalStep`: an optimizer of DTensors steps this rank's shards of them as the plain tensors that they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stratagem.sdk.states import common_states
from stratagem.sdk.torch_private import without_subclass_functions
from stratagem_sharding.torch_private import local_shard, with_shard
from stratagem_sharding.whole_tensors import hold_whole, shard_like

__all__ = ["LocalStep"]


class LocalStep:
    """Lets an optimizer's `step` see shards, while everyone else sees DTensors, in its state, too.

    For optimizers that treat each element separately, as `optimizer_trial` finds out. Torch's DTensors lack some of
    the operations that they use, and can't be stepped next to plain tensors or those of another mesh. Nothing is
    communicated.

    An optimizer that keeps parameters elsewhere than in its groups steps DTensors, as it would without this.

    Args:
        optimizer: its groups and their lists of parameters are the same objects before, within and after each step,
            and its state is before and after it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._whole: list[list[torch.Tensor]] = []
        self._state: Any = None
        self._owner: dict[torch.Tensor, DTensor] = {}
        # An optimizer that wraps another keeps states by the shards: these are the same objects in each step.
        self._shards: dict[int, tuple[DTensor, torch.Tensor]] = {}
        # And it may have a parameter's state in a variable while it calls its closure.
        self._local_states: dict[int, dict[str, Any]] = {}
        # A class whose `step` calls that of its base has the hooks called within the hooks.
        self._depth = 0
        lists = [group["params"] for group in optimizer.param_groups]
        parameters = {id(each) for params in lists for each in params}
        others = [value for key, value in vars(optimizer).items() if key not in ("param_groups", "state")]
        # LBFGS has the list of its group itself, whose elements are exchanged.
        self._is_active = not any(
            _holds(value, parameters) for value in others if not any(value is params for params in lists)
        )

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around one call of the optimizer's `step`: the class's own code sees shards, the user's hooks DTensors."""
        if not self._is_active:
            yield
            return
        # Registered for each step: after all of the user's hooks before the step, and before all of those after it.
        before = self._optimizer.register_step_pre_hook(self._enter)
        after = self._optimizer.register_step_post_hook(self._leave)
        hooks: Any = after.hooks_dict_ref()
        hooks.move_to_end(after.id, last=False)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            if self._depth:  # the step, or a closure within it, has raised
                self._depth = 0
                self._show_dtensors()
            self._local_states.clear()

    def seen_whole(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return `closure`, which sees DTensors whenever the optimizer's `step` calls it."""

        def evaluate() -> Any:
            if not self._depth:
                return closure()
            self._show_dtensors()
            try:
                return closure()
            finally:
                self._show_shards()

        return evaluate

    def _enter(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._show_shards()

    def _leave(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._show_dtensors()

    def _show_shards(self) -> None:
        optimizer = self._optimizer
        self._whole = [list(group["params"]) for group in optimizer.param_groups]
        self._state, self._owner = optimizer.state, {}
        local_state = defaultdict(dict, common_states(optimizer))
        with torch.no_grad(), without_subclass_functions():
            for group, whole in zip(optimizer.param_groups, self._whole):
                group["params"][:] = [self._local(parameter) for parameter in whole]
                for shard, parameter in zip(group["params"], whole):
                    if parameter not in self._state:
                        continue
                    state = self._state[parameter]
                    if shard is not parameter:
                        values = {
                            key: _to_local_state(value, shard, parameter) for key, value in state.items()
                        }
                        state = self._local_states.setdefault(id(parameter), {})
                        state.clear()
                        state.update(values)
                    local_state[shard] = state
        optimizer.state = local_state
        self._shards = {id(owner): (owner, shard) for shard, owner in self._owner.items()}

    def _show_dtensors(self) -> None:
        optimizer = self._optimizer
        stepped, optimizer.state = optimizer.state, self._state
        with torch.no_grad(), without_subclass_functions():
            for key, state in stepped.items():
                owner = self._owner.get(key)
                if owner is None:
                    self._state[key] = state
                    continue
                self._local_states[id(owner)] = state
                kept = self._state.setdefault(owner, {})
                for name in [name for name in kept if name not in state]:
                    del kept[name]
                for name, value in state.items():
                    kept[name] = _as_sharded(value, key, owner, kept.get(name))
            for group, whole in zip(optimizer.param_groups, self._whole):
                group["params"][:] = whole
            for shard in self._owner:
                shard.grad = None
        self._whole, self._state, self._owner = [], None, {}

    def _local(self, parameter: torch.Tensor) -> torch.Tensor:
        if not isinstance(parameter, DTensor):
            return parameter
        shard = parameter.to_local().detach()
        _, kept = self._shards.get(id(parameter), (None, None))
        if kept is not None and kept.data_ptr() == shard.data_ptr() and kept.shape == shard.shape:
            shard = kept
        shard.requires_grad_(parameter.requires_grad)
        shard.grad = _to_local(parameter.grad)
        self._owner[shard] = parameter
        return shard


def _to_local(value: Any) -> Any:
    return value.to_local().detach() if isinstance(value, DTensor) else value


def _to_local_state(value: Any, shard: torch.Tensor, parameter: torch.Tensor) -> Any:
    """Return a state value as the step sees it.

    A copy of a state, and one that was saved, has whole tensors: `optimizer.load_state_dict` puts them into it.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(parameter, DTensor):
        return value
    if isinstance(value, DTensor) or value.shape != parameter.shape or value.shape == shard.shape:
        return _to_local(value)
    return local_shard(shard_like(value, parameter))


def _as_sharded(value: Any, shard: torch.Tensor, owner: DTensor, before: Any) -> Any:
    """Return a state value as the shard of a whole one, where it has the shape of the parameter's shard."""
    if not isinstance(value, torch.Tensor) or value.shape != shard.shape or owner.dim() == 0:
        return value
    if isinstance(before, DTensor) and before.to_local().data_ptr() == value.data_ptr() and value.numel():
        return before
    if value.device.type == owner.device_mesh.device_type:
        sharded = DTensor.from_local(
            value,
            owner.device_mesh,
            owner.placements,
            run_check=False,
            shape=owner.shape,
            stride=owner.stride(),
        )
    else:
        sharded = with_shard(owner, value)  # kept in the CPU's memory
    hold_whole([sharded])
    return sharded


def _holds(value: Any, parameters: set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return id(value) in parameters
    if isinstance(value, dict):
        return any(_holds(each, parameters) for each in (*value.keys(), *value.values()))
    return isinstance(value, (list, tuple, set)) and any(_holds(each, parameters) for each in value)
