"""`ShardMirror`: keeps a sharded parameter and its gathered copy the one parameter that a user's code sees.

`fully_shard` has two objects per parameter: the shard, which optimizers step, and the gathered copy, which
a module has while it computes and into which autograd accumulates. The copy lives as long as the module; its
memory is freed and filled again. torch hands `requires_grad` from the shard to the copy whenever it gathers;
everything else that a training does to the copy would be lost: what it freezes, changes in place or attaches.
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
"""Changes of a gathered parameter in place: those through `.data` don't count in autograd's version counters."""


class ShardMirror:
    """Keeps shards and gathered copies in step. Make it when optimizers have been made.

    Copies are learned where torch first shows them: in a unit's first forward. From then on a change of
    `requires_grad`, an attribute or a hook of either object is one of both; what is changed in place in a
    gathered copy is written to this rank's shard before the copy is freed. Nothing is communicated.

    Args:
        units: modules that are gathered separately.
        freed: those among them whose copies are freed after their forward; of the others, `settle` applies
            the changes.
        original_module: the user's module, whose names messages use.
    """

    def __init__(
        self, units: Sequence[FSDPModule], freed: Collection[FSDPModule], original_module: nn.Module
    ) -> None:
        names = {id(parameter): name for name, parameter in original_module.named_parameters()}
        self._units = [_Unit(unit, names) for unit in units]
        self._handles: list[RemovableHandle] = []
        self.changes = torch.zeros((), dtype=torch.int64)
        """A number of all in-place changes that autograd's version counters show, equal where they are equal."""
        self._uncounted = torch.zeros((), dtype=torch.int64)
        self._uncounted_in = 0
        self._write_backs = 0
        for unit in self._units:
            module = unit.module
            # Before torch's, which would compute with other tensors than the module has.
            before = eager(partial(self._before_gathering, unit))
            self._handles.append(module.register_forward_pre_hook(before, prepend=True))
            # After torch's, which gathers.
            self._handles.append(module.register_forward_pre_hook(eager(partial(self._gathered, unit))))
            if unit.module in freed:
                # Before torch's, which frees.
                hook = eager(partial(self._before_freeing, unit))
                self._handles.append(module.register_forward_hook(hook, prepend=True))

    def settle(self) -> None:
        """Copy what the user's code did to gathered parameters into the shards. Call it before a backward.

        Raises:
            ConfigError: a shard was changed while its gathered copy was in use.
        """
        for unit in self._units:
            self._write_back(unit)
            unit.share_hooks()

    @property
    def has_accumulated_hooks(self) -> bool:
        """Whether the user's hooks look at what has been accumulated, so that each backward is to reduce.

        torch calls them with the shard, once the ranks' gradients have been reduced into it.
        """
        return any(unit.has_accumulated_hooks() for unit in self._units)

    def release(self) -> None:
        """Leave the modules as they were."""
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
            # torch keeps dtypes of reductions for what was trained when it looked: this looks again.
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
        # Only ranks whose shards it changed notice a change through `.data`.
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
            hold_whole([copy])  # split among the ranks of a copy of the model
        self.name = name
        self.sharded: Any = sharded
        self.copy: Any = copy
        self.requires_grad = sharded.requires_grad
        # Frees of the copy leave the storage, so that this stays the memory of it.
        self.whole = local_of(copy.detach())
        mesh = sharded.device_mesh
        # Sharded over the last dimension but those over which the copy itself is split.
        dim = mesh.ndim - 1 - (copy.device_mesh.ndim if isinstance(copy, DTensor) else 0)
        rows = -(-self.whole.shape[0] // mesh.size(dim))
        first = min(mesh.get_local_rank(dim) * rows, self.whole.shape[0])
        self.part = self.whole[first : first + rows]
        self.versions = (_version(copy), _version(sharded))
        if type(copy) is nn.Parameter:
            # One dict of attributes for both.
            vars(sharded).update(vars(copy))
            copy.__dict__ = sharded.__dict__
        else:
            vars(copy).update(vars(sharded))

    def match_requires_grad(self) -> bool:
        """Give both the value of the one that was changed; whether there was one."""
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
            # The very dict, so that the handles that the user keeps remove them here, too.
            if hooks is None:
                set_backward_hooks(self.sharded, theirs)
            else:
                hooks.update(theirs or {})
                set_backward_hooks(self.copy, hooks)
        accumulated = post_accumulate_hooks(self.copy)
        if accumulated:
            # torch calls the shard's, after the reduction.
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
        # Changes through `.data` aren't counted; comparing shards costs a part of what gathering them did.
        part, is_other = self.part, False
        if part.device.type == shard.device.type == "cpu" and part.dtype == shard.dtype:
            is_other = not torch.equal(part, shard)
            if is_other:
                _write(shard, part)
        else:
            # Without waiting for the device; in the copy's dtype, so that rounding alone counts for no change.
            ours = shard.to(part.device)
            _write(shard, torch.where(part == ours.to(part.dtype), ours, part.to(ours.dtype)))
        is_counted = versions[0] != self.versions[0]
        self.versions = (versions[0], _version(self.sharded))
        # Ranks that share a copy of the model have other values of what is split among them.
        if isinstance(self.copy, DTensor):
            return NONE
        return COUNTED if is_counted else UNCOUNTED if is_other else NONE

    def _copy_replaced_data(self, whole: torch.Tensor) -> None:
        """`parameter.data = tensor` took the copy out of the memory into which torch gathers."""
        _write(whole, local_of(self.copy).detach())
        if isinstance(self.copy, DTensor):
            raise ConfigError(
                f"{self.name!r}.data was replaced: change it in place, as with .data.copy_(...)"
            )
        self.copy.data = whole


class _Unit:
    """A module that is gathered as one, and the parameters that it shards itself."""

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
        """Number of a place → its copy; torch gathers into the same one each time."""

    def learn(self) -> None:
        if self._learned:
            return
        self._learned = True
        seen: set[int] = set()
        for at, (module, key, sharded, name) in enumerate(self._places):
            copy = own_parameters(module)[key]
            self._copies[at] = copy
            # Parameters that torch ignores on request have no copy.
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
        """Return the name of a parameter that is given to the `functional_call` which this forward is a part of.

        It would put the gathered copy into the caller's dict, whose memory is freed after the backward: reading it
        then ends the process. It calls nothing by which a module could see it.
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
    """Yield `unit` and what is in it, but not other units."""
    yield unit
    for child in unit.children():
        if not isinstance(child, FSDPModule):
            yield from _own_modules(child)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor_version(tensor)


@torch.no_grad()
def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    target.copy_(value)
