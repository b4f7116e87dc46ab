"""`ShardMirror`: keeps a sharded parameter and its gathered copy in sync, so that they look like one parameter.

`fully_shard` has two objects per parameter: the shard, which optimizers step, and the gathered copy, which
a module has while it computes and into which autograd accumulates. The copy lives as long as the module; its
memory is freed and filled again. Torch copies `requires_grad` from the shard to the copy whenever it gathers. All
other changes of a training to the copy would be lost: freezing it, changing it in place, or attaching hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import torch
from stratagem_sharding.torch_private import (
    backward_hooks,
    own_parameters,
    post_accumulate_hooks,
    set_backward_hooks,
    set_post_accumulate_hooks,
)
from stratagem_sharding.whole_tensors import hold_whole
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from stratagem import ConfigError
from stratagem.errors import ShardedUseError
from stratagem.sdk.shards import fingerprint
from stratagem.sdk.torch_private import tensor_version
from stratagem_fsdp.eager import eager
from stratagem_fsdp.torch_private import local_of

NONE, COUNTED, UNCOUNTED = "none", "counted", "uncounted"
"""Kinds of in-place changes to a gathered parameter. Version counters don't count those through `.data`."""


class ShardMirror:
    """Keeps shards and gathered copies in sync. Create it after the optimizers.

    Torch creates copies in a unit's first forward. From then on, a change of `requires_grad`, an attribute or a hook
    of either object applies to both. In-place changes to a gathered copy are written to this rank's shard before
    the copy is freed. Nothing is communicated.

    Args:
        units: modules that are gathered separately.
        freed: the units whose copies are freed after their forward. For the others, `settle` writes the changes
            back.
        original_module: the user's module, whose names messages use.
    """

    def __init__(
        self, units: Sequence[FSDPModule], freed: Collection[FSDPModule], original_module: nn.Module
    ) -> None:
        names = {id(parameter): name for name, parameter in original_module.named_parameters()}
        self._units = [_Unit(unit, names) for unit in units]
        self._handles: list[RemovableHandle] = []
        self.changes = torch.zeros((), dtype=torch.int64)
        """A fingerprint of all changes that version counters show; equal on ranks with equal changes."""
        self._uncounted = torch.zeros((), dtype=torch.int64)
        self._uncounted_in = 0
        self._write_backs = 0
        for unit in self._units:
            module = unit.module
            # Before torch's hook, which would ignore tensors that the user has put into the module.
            before = eager(partial(self._before_gathering, unit))
            self._handles.append(module.register_forward_pre_hook(before, prepend=True))
            # After torch's hook, which gathers.
            self._handles.append(module.register_forward_pre_hook(eager(partial(self._gathered, unit))))
            if unit.module in freed:
                # Before torch's hook, which frees.
                hook = eager(partial(self._before_freeing, unit))
                self._handles.append(module.register_forward_hook(hook, prepend=True))

    def settle(self) -> None:
        """Write the user's changes to gathered parameters back to the shards. Call it before a backward.

        Raises:
            ConfigError: a shard was changed while its gathered copy was in use.
        """
        for unit in self._units:
            self._write_back(unit)
            unit.share_hooks()

    @property
    def has_accumulated_hooks(self) -> bool:
        """Whether the user has post-accumulate hooks, so that each backward must reduce.

        Torch calls them with the shard, once gradients have been reduced into it.
        """
        return any(unit.has_accumulated_hooks() for unit in self._units)

    def release(self) -> None:
        """Remove the hooks from the modules."""
        for handle in self._handles:
            handle.remove()
        self._units.clear()

    def _before_gathering(self, unit: _Unit, *_: Any) -> None:
        replaced = unit.replaced()
        if replaced is not None:
            raise ShardedUseError(
                f"{replaced!r} isn't the parameter that setup() sharded: another tensor was put in its place, as "
                "torch.func.functional_call, a parametrization or an assignment after setup() does; choose ddp, or "
                "change the parameter in place"
            )
        given = unit.given_to_functional_call()
        if given is not None:
            raise ShardedUseError(
                f"{given!r} was given to torch.func.functional_call, and setup() sharded it: gradients of the copy "
                "that the forward uses never reach it; call the module itself and use runtime.backward(loss), or "
                "choose ddp"
            )

    def _gathered(self, unit: _Unit, *_: Any) -> None:
        unit.learn()
        if unit.match_requires_grad():
            # torch caches reduce dtypes for the parameters that were trained at the unshard; unshard refreshes them.
            unit.fsdp.unshard()
        unit.remember_versions()

    def _before_freeing(self, unit: _Unit, *_: Any) -> None:
        self._write_back(unit)

    def _write_back(self, unit: _Unit) -> None:
        if unit.is_gathered():
            self._write_backs += 1
            unit.match_requires_grad()
            counted, uncounted = [], []
            for pair in unit.pairs:
                change = pair.write_back()
                if change == COUNTED:
                    counted.append(pair.whole)
                elif change == UNCOUNTED:
                    uncounted.append(pair.whole)
                    self._uncounted_in = crc32(
                        f"{self._write_backs} {pair.name}".encode(), self._uncounted_in
                    )
            if counted:
                number = fingerprint(counted, counted[0].device)
                self.changes = self.changes.to(number.device) * 31 + number
            if uncounted:
                number = fingerprint(uncounted, uncounted[0].device)
                self._uncounted = self._uncounted.to(number.device) * 31 + number

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        """Yield the tensors that show changes within forwards; see `Prepared.replicas`."""
        yield "the changes in place of parameters", self.changes
        # A change through `.data` is only noticed on ranks whose shards it changed.
        yield (
            "what your code wrote to parameters through .data",
            self._uncounted,
            "changes",
            str(self._uncounted_in),
        )


class _Pair:
    """A shard and its gathered copy."""

    def __init__(self, name: str, sharded: Any, copy: nn.Parameter) -> None:
        if isinstance(copy, DTensor):
            hold_whole([copy])  # split by another axis, such as tensor parallelism
        self.name = name
        self.sharded: Any = sharded
        self.copy: Any = copy
        self.requires_grad = sharded.requires_grad
        # Freeing the copy resizes its storage to 0 but keeps the object, so this view stays valid.
        self.whole = local_of(copy.detach())
        mesh = sharded.device_mesh
        # Index of the shard dimension: the last one before those over which the copy itself is split.
        dim = mesh.ndim - 1 - (copy.device_mesh.ndim if isinstance(copy, DTensor) else 0)
        rows = -(-self.whole.shape[0] // mesh.size(dim))
        first = min(mesh.get_local_rank(dim) * rows, self.whole.shape[0])
        self.part = self.whole[first : first + rows]
        self.versions = (_version(copy), _version(sharded))
        if type(copy) is nn.Parameter:
            # Both objects share one dict of attributes.
            vars(sharded).update(vars(copy))
            copy.__dict__ = sharded.__dict__
        else:
            vars(copy).update(vars(sharded))

    def match_requires_grad(self) -> bool:
        """Apply a changed `requires_grad` of one object to both; return whether there was a change."""
        before, ours, theirs = self.requires_grad, self.sharded.requires_grad, self.copy.requires_grad
        if before is ours and before is theirs:
            return False
        self.requires_grad = not before
        if ours is before:
            self.sharded.requires_grad_(self.requires_grad)
        if theirs is before:
            self.copy.requires_grad_(self.requires_grad)
        return True

    def share_hooks(self) -> None:
        hooks, theirs = backward_hooks(self.sharded), backward_hooks(self.copy)
        if hooks is not theirs:
            # Share the dict object, so that the user's handles remove the hooks from both.
            if hooks is None:
                set_backward_hooks(self.sharded, theirs)
            else:
                hooks.update(theirs or {})
                set_backward_hooks(self.copy, hooks)
        accumulated = post_accumulate_hooks(self.copy)
        if accumulated:
            # torch calls post-accumulate hooks of the shard, after the reduction.
            accumulated.update(post_accumulate_hooks(self.sharded) or {})
            set_post_accumulate_hooks(self.sharded, accumulated)
            set_post_accumulate_hooks(self.copy, None)

    def write_back(self) -> str:
        """Write the copy's changes to the shard; return NONE, COUNTED or UNCOUNTED."""
        whole, shard = self.whole, local_of(self.sharded)
        if local_of(self.copy).data_ptr() != whole.data_ptr():
            self._copy_replaced_data(whole)
        versions = (_version(self.copy), _version(self.sharded))
        if versions[1] != self.versions[1]:
            raise ConfigError(
                f"{self.name!r} was changed in place by way of its shard, as a list of parameters or an optimizer "
                "has it, in a step that computes with all of it: change it by way of its module, as in "
                "self.layer.weight.clamp_(...)"
            )
        # Changes through `.data` aren't counted, so compare values. That is cheaper than the gather was.
        part, is_other = self.part, False
        if part.device.type == shard.device.type == "cpu" and part.dtype == shard.dtype:
            is_other = not torch.equal(part, shard)
            if is_other:
                _write(shard, part)
        else:
            # torch.where doesn't wait for the device. Compare in the copy's dtype, so that rounding isn't a change.
            ours = shard.to(part.device)
            _write(shard, torch.where(part == ours.to(part.dtype), ours, part.to(ours.dtype)))
        is_counted = versions[0] != self.versions[0]
        self.versions = (versions[0], _version(self.sharded))
        # Ranks that split a parameter have different values of it, so there is nothing to compare.
        if isinstance(self.copy, DTensor):
            return NONE
        return COUNTED if is_counted else UNCOUNTED if is_other else NONE

    def _copy_replaced_data(self, whole: torch.Tensor) -> None:
        """Copy data assigned by `parameter.data = tensor` into the memory into which torch gathers."""
        _write(whole, local_of(self.copy).detach())
        if isinstance(self.copy, DTensor):
            raise ConfigError(
                f"{self.name!r}.data was replaced: change it in place, as with .data.copy_(...)"
            )
        self.copy.data = whole


class _Unit:
    """A module that is gathered as one, with the parameters of its own that are sharded."""

    def __init__(self, fsdp: FSDPModule, names: dict[int, str]) -> None:
        assert isinstance(fsdp, nn.Module)
        self.fsdp, self.module = fsdp, fsdp
        self.pairs: list[_Pair] = []
        self._places: list[tuple[nn.Module, str, Any, str]] = [
            (module, key, parameter, names.get(id(parameter), key))
            for module in _own_modules(fsdp)
            for key, parameter in own_parameters(module).items()
            if isinstance(parameter, DTensor)
        ]
        self._learned = False
        self._copies: dict[int, Any] = {}
        """Index in `_places` → the gathered copy. Torch gathers into the same object each time."""

    def learn(self) -> None:
        if self._learned:
            return
        self._learned = True
        seen: set[int] = set()
        for at, (module, key, sharded, name) in enumerate(self._places):
            copy = own_parameters(module)[key]
            self._copies[at] = copy
            # Ignored parameters (`ignored_params`) have no copy.
            if copy is not None and copy is not sharded and id(copy) not in seen:
                seen.add(id(copy))
                self.pairs.append(_Pair(name, sharded, copy))
                self._place = module, key, sharded
        for pair in self.pairs:
            pair.share_hooks()

    def replaced(self) -> str | None:
        """Return the name of a parameter that the user replaced by another tensor, if any."""
        for at, (module, key, sharded, name) in enumerate(self._places):
            current = own_parameters(module).get(key)
            if current is not sharded and current is not self._copies.get(at, sharded):
                return name
        return None

    def given_to_functional_call(self) -> str | None:
        """Return the name of a parameter that was passed to a surrounding `torch.func.functional_call`, if any.

        `functional_call` would put the gathered copy into the caller's dict. Its memory is freed after the backward,
        and reading it then crashes the process. It has no hook that a module could use, so look at the call stack.
        """
        # patch: functional_call
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not functional_call.__code__:
            frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
        if frame is None:
            return None
        dicts = frame.f_locals["parameter_and_buffer_dicts"]
        found = [dicts] if isinstance(dicts, Mapping) else dicts
        given = {id(tensor) for each in found for tensor in each.values()}
        ours = (
            (name, (sharded, self._copies.get(at))) for at, (_, _, sharded, name) in enumerate(self._places)
        )
        return next((name for name, tensors in ours if any(id(each) in given for each in tensors)), None)

    def is_gathered(self) -> bool:
        if not self.pairs:
            return False
        module, key, sharded = self._place
        return own_parameters(module)[key] is not sharded

    def match_requires_grad(self) -> bool:
        return sum(pair.match_requires_grad() for pair in self.pairs) > 0

    def share_hooks(self) -> None:
        for pair in self.pairs:
            pair.share_hooks()

    def has_accumulated_hooks(self) -> bool:
        return any(post_accumulate_hooks(sharded) for _, _, sharded, _ in self._places)

    def remember_versions(self) -> None:
        for pair in self.pairs:
            pair.versions = (_version(pair.copy), _version(pair.sharded))


def _own_modules(unit: nn.Module) -> Iterator[nn.Module]:
    """Yield `unit` and its submodules, without other units."""
    yield unit
    for child in unit.children():
        if not isinstance(child, FSDPModule):
            yield from _own_modules(child)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor_version(tensor)


@torch.no_grad()
def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    target.copy_(value)
