"""Copies of a module on other devices, through which gradients flow back to the one set of parameters."""

from __future__ import annotations

import torch
from torch import nn


def replicate(module: nn.Module, device: torch.device) -> dict[int, nn.Module]:
    """Copy `module` and all in it for one forward and backward.

    Parameters of a copy are copies on `device` that autograd knows of, or the very parameters where they
    are there already. Buffers are copies; what a forward does to them is lost, as is any attribute that
    it sets.

    Args:
        module: on one device; tied parameters are tied in the copy.
        device: of the copy.

    Returns:
        id(submodule) → its copy, for `module` and every submodule.
    """
    moved: dict[int, torch.Tensor] = {}
    copies = {id(each): each._replicate_for_data_parallel() for each in module.modules()}  # type: ignore[no-untyped-call]
    for each in module.modules():
        copy = copies[id(each)]
        for name, child in each._modules.items():
            if child is not None:
                copy._modules[name] = copies[id(child)]
        for name, parameter in each._parameters.items():
            if parameter is None:
                copy._parameters[name] = None
                continue
            if id(parameter) not in moved:
                moved[id(parameter)] = parameter.to(device)
            # By attribute first: recurrent layers keep lists of their weights up to date that way.
            setattr(copy, name, moved[id(parameter)])
            copy.__dict__.pop(name, None)
            copy._parameters[name] = moved[id(parameter)]  # not a leaf, but found as one
        for name, buffer in each._buffers.items():
            copy._buffers[name] = None if buffer is None else buffer.to(device, copy=True)
    return copies
