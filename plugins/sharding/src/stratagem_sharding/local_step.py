"""`LocalStep`: lets an optimizer of DTensors step this rank's shards as plain tensors."""

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
    """Lets an optimizer's `step` see plain shards; all other code sees DTensors, also in the optimizer's state.

    For optimizers that treat each element separately; `optimizer_trial` finds that out. DTensors lack some of the
    operations that optimizers use, and can't be stepped together with plain tensors or DTensors of another mesh.
    Nothing is communicated.
    An optimizer that keeps parameters outside its groups steps DTensors, as it would without this class.

    Args:
        optimizer: its groups and their parameter lists stay the same objects before, within and after each step. Its
            state is the same object before and after a step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._whole: list[list[torch.Tensor]] = []
        self._state: Any = None
        self._owner: dict[torch.Tensor, DTensor] = {}
        # An optimizer that wraps another keys its states by the shards: keep the same shard objects in every step.
        self._shards: dict[int, tuple[DTensor, torch.Tensor]] = {}
        # An optimizer may hold a parameter's state in a variable while it calls its closure: keep these dicts too.
        self._local_states: dict[int, dict[str, Any]] = {}
        # If a class's `step` calls `super().step`, the step hooks run nested.
        self._depth = 0
        lists = [group["params"] for group in optimizer.param_groups]
        parameters = {id(each) for params in lists for each in params}
        others = [value for key, value in vars(optimizer).items() if key not in ("param_groups", "state")]
        # LBFGS keeps a reference to its group's list of parameters, whose elements are replaced in place.
        self._is_active = not any(
            _holds(value, parameters) for value in others if not any(value is params for params in lists)
        )

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Show shards to the optimizer's `step` and DTensors to the user's hooks. A context manager for one step."""
        if not self._is_active:
            yield
            return
        # Registered again for each step, so that it runs after the user's pre-hooks and before the user's post-hooks.
        before = self._optimizer.register_step_pre_hook(self._enter)
        after = self._optimizer.register_step_post_hook(self._leave)
        hooks: Any = after.hooks_dict_ref()
        hooks.move_to_end(after.id, last=False)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            if self._depth:  # the step or its closure has raised
                self._depth = 0
                self._show_dtensors()
            self._local_states.clear()

    def seen_whole(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that sees DTensors when the optimizer's `step` calls it."""

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

    A state that was copied or loaded by `optimizer.load_state_dict` has whole tensors; this returns their shards.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(parameter, DTensor):
        return value
    if isinstance(value, DTensor) or value.shape != parameter.shape or value.shape == shard.shape:
        return _to_local(value)
    return local_shard(shard_like(value, parameter))


def _as_sharded(value: Any, shard: torch.Tensor, owner: DTensor, before: Any) -> Any:
    """Return a state value as a DTensor if it has the shape of the parameter's shard, else unchanged."""
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
        sharded = with_shard(owner, value)  # the optimizer keeps this state in CPU memory
    hold_whole([sharded])
    return sharded


def _holds(value: Any, parameters: set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return id(value) in parameters
    if isinstance(value, dict):
        return any(_holds(each, parameters) for each in (*value.keys(), *value.values()))
    return isinstance(value, (list, tuple, set)) and any(_holds(each, parameters) for each in value)
