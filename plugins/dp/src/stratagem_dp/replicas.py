"""Copies of a module on other devices, through which gradients flow back to the one set of parameters."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

import torch
from stratagem_sharding.torch_private import own_buffers, own_children, own_parameters
from torch import nn

from stratagem.errors import ConfigError, DataError
from stratagem.sdk.torch_private import tensor_version
from stratagem_dp.torch_private import NORM, empty_copy


class Copied(NamedTuple):
    """A parameter or buffer and its copy, with the versions that both had when the copy was made."""

    module: nn.Module
    """The user's module that has it."""
    name: str
    original: torch.Tensor
    copy: torch.Tensor
    versions: tuple[int, int]


class _Copy(torch.autograd.Function):
    """Copies to a device. Its gradient may be sparse, which that of `Tensor.to` may not."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        ctx.device = tensor.device
        return tensor.to(device, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].to(ctx.device), None


@dataclass(frozen=True)
class Replica:
    """A copy of a module for one forward and backward."""

    modules: dict[int, nn.Module]
    """id(submodule) → its copy, for the module and every submodule."""
    copied: list[Copied] = field(default_factory=list)

    def refuse_other_changes(self, module: nn.Module) -> None:
        """Refuse what the step did to this copy's tensors and not to those of the module itself.

        A step that changes a tensor in place does so in each copy, and what it does to the module itself
        stays; so the same change everywhere is right. Statistics of a batch norm are the first part's.

        Args:
            module: the user's, for names.

        Raises:
            DataError: names the tensor.
        """
        names = {id(each): name for name, each in module.named_modules()}
        for owner, name, original, copy, versions in self.copied:
            if isinstance(owner, NORM) and name in own_buffers(owner):
                continue
            now, its = _tensor(owner, name), _tensor(self.modules[id(owner)], name)
            same = (
                now is original
                and its is copy
                and (tensor_version(original), tensor_version(copy)) == versions
            )
            if not same and not _equal(now, its):
                prefix = names.get(id(owner), "")
                raise DataError(
                    f"the step changes {f'{prefix}.{name}' if prefix else name!r}, and differently on each part of a "
                    "batch, of which only the first one's would stay: change it in training_step_end, which has all "
                    "parts, or in on_train_batch_end, or choose strategy='ddp'"
                )


def replicate(module: nn.Module, device: torch.device) -> Replica:
    """Copy `module` and all in it for one forward and backward.

    Parameters of a copy are copies that autograd knows of, also where they are on `device` already: what a
    step does to one in place is done once to the module. Buffers are copies, too; what a forward does to them
    is lost, as is any attribute that it sets. Copies of compiled blocks aren't compiled: what torch compiled
    is bound to the block itself.

    Args:
        module: on one device; tied parameters are tied in the copy.
        device: of the copy.
    """
    moved: dict[int, torch.Tensor] = {}
    replica = Replica({id(each): empty_copy(each) for each in module.modules()})
    for each in module.modules():
        copy = replica.modules[id(each)]
        if "forward" in vars(each):
            vars(copy)["forward"] = deepcopy(
                vars(each)["forward"], dict(replica.modules)
            )  # bound to the copy
        for name, child in own_children(each).items():
            if child is not None:
                own_children(copy)[name] = replica.modules[id(child)]
        for name, parameter in own_parameters(each).items():
            if parameter is None:
                own_parameters(copy)[name] = None
                continue
            if id(parameter) not in moved:
                moved[id(parameter)] = _Copy.apply(parameter, device)  # type: ignore[no-untyped-call]  # torch has no types for it
                moved[id(parameter)].__dict__.update(vars(parameter))  # what users say of it, as `no_decay`
            # By attribute first: recurrent layers keep lists of their weights up to date that way.
            setattr(copy, name, moved[id(parameter)])
            copy.__dict__.pop(name, None)
            own_parameters(copy)[name] = moved[id(parameter)]  # not a leaf, but found as one
            replica.copied.append(_copied(each, name, parameter, moved[id(parameter)]))
        for name, buffer in own_buffers(each).items():
            own_buffers(copy)[name] = None
            if buffer is not None:
                own_buffers(copy)[name] = twin = buffer.to(device, copy=True)
                replica.copied.append(_copied(each, name, buffer, twin))
    _bind_forwards(module, replica)
    return replica


def _bind_forwards(module: nn.Module, replica: Replica) -> None:
    """Let forwards that are attributes of a module, as of recomputed activations, compute with the copies."""
    own = [each for each in module.modules() if "forward" in vars(each)]
    if own:
        tensors = {id(each.original): each.copy for each in replica.copied}
        for each in own:
            forward = vars(each)["forward"]
            vars(replica.modules[id(each)])["forward"] = deepcopy(forward, {**replica.modules, **tensors})


def refuse_uncopyable(module: nn.Module) -> None:
    """Refuse modules of which torch makes no copies.

    Raises:
        ConfigError: names the first, and what to do.
    """
    for name, each in module.named_modules():
        where = f"{name or 'the module'!r}, a {type(each).__name__},"
        tensors = (*own_parameters(each).values(), *own_buffers(each).values())
        if any(nn.parameter.is_lazy(tensor) for tensor in tensors):
            raise ConfigError(
                f"{where} is uninitialized, and can't be copied to several devices: run one batch through the "
                "module where it is made, or give the layer its sizes"
            )
        if type(each).__name__ == "OptimizedModule":
            raise ConfigError(
                f"{where} is made by torch.compile, and can't be copied to several devices: call "
                f"{name or 'module'}.compile() in place of torch.compile(…), or choose strategy='ddp'"
            )
        if isinstance(vars(each).get("forward"), FunctionType):
            raise ConfigError(
                f"{where} has a function as its forward, which computes with this module and not with its copies: "
                "bind it as a method, as types.MethodType(function, module), or choose strategy='ddp'"
            )


def _copied(module: nn.Module, name: str, original: torch.Tensor, copy: torch.Tensor) -> Copied:
    return Copied(module, name, original, copy, (tensor_version(original), tensor_version(copy)))


def _tensor(module: nn.Module, name: str) -> torch.Tensor | None:
    return own_parameters(module).get(name, own_buffers(module).get(name))


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or one.is_meta or other.is_meta:
        return one is other or (one is not None and other is not None)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Devices of several kinds round differently.
    return torch.allclose(one.detach(), other.detach().to(one.device), rtol=1e-5, atol=1e-8, equal_nan=True)
