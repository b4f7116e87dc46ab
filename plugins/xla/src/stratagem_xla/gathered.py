"""Keeps a sharded parameter and its gathered copy the one parameter that a user's code sees.

torch_xla's wrapper has two objects per parameter: the shard, which optimizers step, and a copy, which is gathered
for a forward and a backward and otherwise empty, and with which modules compute. Whatever a step does to the copy
is lost there, and it looks at an empty one without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from stratagem_sharding.shards import padded_flat_shard
from stratagem_sharding.torch_private import (
    backward_hooks,
    own_parameters,
    post_accumulate_hooks,
    set_backward_hooks,
)
from torch import nn

from stratagem import ConfigError
from stratagem.errors import ShardedUseError
from stratagem.sdk.torch_private import tensor_version
from stratagem_xla.xla_private import (
    REPLACED,
    empty,
    is_gathered,
    numbers_of,
    register_hooks,
    replace,
    restore,
    whole_shape,
)

Places = Sequence[tuple[nn.Module, str]]
"""Modules that have a parameter, each with its name there."""


class GatheredUnit:
    """The parameters of one of torch_xla's wrappers. Make it when they have been sharded.

    Modules have the copy in their `_parameters` while it is gathered, and the shard otherwise. Changes of
    the copy meanwhile, in place or in `requires_grad`, are written to the shard before the copy is freed. Nothing
    is communicated.

    Args:
        wrapper: torch_xla's.
        names: module and a parameter's name in it → the parameter's name for messages.
    """

    def __init__(self, wrapper: Any, names: Mapping[tuple[nn.Module, str], str]) -> None:
        places = [[(owner, key)] for _, owner, key in wrapper.full_param_infos]
        first = {place: each for each in places for place in each}
        for _, _, owner, key, its_owner, its_key in wrapper.shared_full_param_infos:
            first[its_owner, its_key].append((owner, key))
        self.pairs = [
            _Pair(wrapper, copy, shard, each, names.get(each[0], each[0][1]))
            for copy, shard, each in zip(wrapper.full_params, wrapper.sharded_params, places)
        ]
        self._wrapper = wrapper
        own_parameters(wrapper).clear()
        ours: tuple[Callable[..., Any], ...] = (self._gathering, self._freeing, self._check_state)
        self._gather, self._free, self._assert_state = (
            replace(wrapper, name, method) for name, method in zip(REPLACED, ours)
        )

    def settle(self) -> None:
        """Carry what your code did to gathered copies over to their shards. Call it before a backward.

        Raises:
            ConfigError: a shard was changed while its copy was in use.
        """
        for pair in self.pairs:
            if pair.is_gathered:
                pair.carry_changes()

    def check_gradients(self) -> None:
        """Look whether your code gave a gathered copy a gradient. Call it before a step, which steps the shards.

        Raises:
            ShardedUseError: a copy has a gradient that no step would apply.
        """
        for pair in self.pairs:
            pair.check_gradient()

    def release(self) -> None:
        """Leave the wrapper as it was, so that nothing keeps both alive."""
        restore(self._wrapper)

    def _gathering(self, *args: Any, **kwargs: Any) -> None:
        coming = [pair for pair in self.pairs if not pair.is_gathered]
        for pair in coming:
            pair.hand_over()
        self._gather(*args, **kwargs)
        for pair in coming:
            pair.show_copy()

    def _freeing(self, params: Iterable[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        freed = None if params is None else {id(each) for each in params}
        going = [
            pair for pair in self.pairs if pair.is_gathered and (freed is None or id(pair.copy) in freed)
        ]
        for pair in going:
            pair.carry_changes()
        self._free(params, *args, **kwargs)
        for pair in going:
            pair.show_shard()
            pair.freed()

    def _check_state(self, allowed: Any) -> None:
        # What requires gradients doesn't show whether a unit got any: a step may leave that out, or freeze it after
        # its forward.
        either = {"BACKWARD_PRE", "BACKWARD_POST"}
        names = {state.name for state in (allowed if isinstance(allowed, list) else [allowed])}
        if self._wrapper.training_state.name not in either or not names & either:
            self._assert_state(allowed)


class _Pair:
    def __init__(
        self, wrapper: Any, copy: nn.Parameter, shard: nn.Parameter, places: Places, name: str
    ) -> None:
        self.copy: Any = copy
        self._shard: Any = shard
        self._wrapper, self._places, self._name = wrapper, places, name
        # One dict of attributes for both.
        vars(shard).update(vars(copy))
        copy.__dict__ = shard.__dict__
        self._trained = shard.requires_grad
        self._noted: tuple[_Mark, _Mark] | None = None
        """Of the copy and of the shard, since when the user's code may have written to them."""
        self._empty()
        for owner, key in places:
            del owner.__dict__[key]
        self.show_shard()
        # Nothing but a use in a loss leads a gradient there: torch_xla assigns what it has reduced.
        with torch.enable_grad():
            shard.requires_grad_(True)
            used: Any = shard.expand_as(shard).grad_fn
            shard.requires_grad_(self._trained)
        self._leaf = used.next_functions[0][0]
        self._leaf.register_prehook(partial(_refuse_gradient, name))

    @property
    def is_gathered(self) -> bool:
        return is_gathered(self.copy)

    def show_shard(self) -> None:
        for owner, key in self._places:
            own_parameters(owner)[key] = self._shard

    def show_copy(self) -> None:
        for owner, key in self._places:
            own_parameters(owner)[key] = self.copy
        # In backward, torch_xla itself writes to both.
        in_forward = self._wrapper.training_state.name == "FORWARD"
        self._noted = (_mark(self.copy), _mark(self._shard)) if in_forward else None

    def hand_over(self) -> None:
        """Give the copy what the user gave the shard since it was gathered last."""
        self._trained = self._shard.requires_grad
        if self.copy.requires_grad != self._trained:
            self.copy.requires_grad_(self._trained)
        self._share_hooks()

    def carry_changes(self) -> None:
        """Give the shard what the user did to the copy since it was gathered, once."""
        if self._noted is None:
            return
        (copy, shard), self._noted = self._noted, None
        self._share_hooks()
        # Its IR is torch_xla's to change, too.
        if _mark(self._shard)[:2] != shard[:2] or self._shard.requires_grad != self._trained:
            raise ConfigError(
                f"{self._name!r} was changed, in place or in requires_grad, by way of its shard, as a list of "
                "parameters or an optimizer has it, in a step that computes with all of it: change it by way of its "
                "module, as in self.layer.weight.clamp_(...), or between steps"
            )
        if self.copy.requires_grad != self._trained:
            self._trained = self.copy.requires_grad
            self._shard.requires_grad_(self._trained)
            if self._trained:
                with torch.enable_grad():
                    register_hooks(self._wrapper)
        if _mark(self.copy) != copy:
            self._write_back()
            self._changed = True

    def check_gradient(self) -> None:
        # torch_xla moves each copy's gradient to the shard within the backward.
        if self.copy.grad is not None:
            raise ShardedUseError(
                f"a gradient was assigned to {self._name!r} while it was gathered, under xla_fsdp with spmd=False, "
                "which steps shards and reduces gradients in a backward alone: call runtime.backward(loss), or leave "
                "spmd=True"
            )

    def _share_hooks(self) -> None:
        hooks, theirs = backward_hooks(self._shard), backward_hooks(self.copy)
        if hooks is not theirs:
            if hooks and theirs:
                hooks.update(theirs)
            # The very dict, so that the handles that the user keeps remove hooks there, too.
            shared = theirs if hooks is None else hooks
            set_backward_hooks(self._shard, shared)
            set_backward_hooks(self.copy, shared)
        if post_accumulate_hooks(self._shard) or post_accumulate_hooks(self.copy):
            raise ConfigError(
                f"{self._name!r} has a hook of register_post_accumulate_grad_hook, and xla_fsdp with spmd=False has "
                "each gradient as shards: use register_hook, which sees it whole, or leave spmd=True"
            )

    @torch.no_grad()
    def _write_back(self) -> None:
        if self._wrapper.compute_dtype != torch.float32:
            raise ConfigError(
                f"{self._name!r} was changed in place in a step that has it in {self._wrapper.compute_dtype}: leave "
                "compute_dtype out, or change it between steps"
            )
        part = padded_flat_shard(self.copy, self._shard.numel(), self._wrapper.rank)
        self._shard.copy_(part.view(self._shard.shape))

    @torch.no_grad()
    def freed(self) -> None:
        """Called when the copy has been freed."""
        self._noted = None
        if self._changed:
            self._empty()

    @torch.no_grad()
    def _empty(self) -> None:
        """Free the copy, and what has been written to it.

        `xla_private.empty` alone leaves that in what functionalization keeps of the copy, from which its views
        are made: the next forward would read it there.
        """
        self._changed = False
        self.copy.data = self._shard.new_zeros(whole_shape(self._shard))
        empty(self.copy, self._wrapper)


_Mark = tuple[int, int, str]


def _mark(tensor: torch.Tensor) -> _Mark:
    """What differs once a tensor has been written to, directly or through `.data` or a view."""
    number, values = numbers_of(tensor)
    return number, tensor_version(tensor), values


def _refuse_gradient(name: str, *_: Any) -> None:
    raise ShardedUseError(use_of_shard(name))


def use_of_shard(name: str) -> str:
    """Return what to say where a loss has the shard of a parameter."""
    return (
        f"under xla_fsdp with spmd=False, {name!r} was used where this process has its shard alone, outside of its "
        "unit's own forward: use it within, leave its module out of auto_wrap_policy, or leave spmd=True"
    )
