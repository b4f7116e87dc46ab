"""What users put on parameters and modules: hooks, attributes, lists of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.parity.kind import Kind, stack


class Hooked(Kind, abstract=True):
    theme = "hooks"

    def net(self) -> nn.Module:
        return stack()


class HookScale(Hooked):
    """Parameter hook that scales a gradient."""

    def net(self) -> nn.Module:
        net = stack()
        net[1][0].weight.register_hook(lambda grad: 0.1 * grad)
        return net


class HookMask(Hooked):
    """Parameter hook that masks rows of a gradient."""

    def net(self) -> nn.Module:
        net = stack()
        mask = (torch.arange(16) % 3 > 0).float()[:, None]
        net[1][0].weight.register_hook(lambda grad: grad * mask)
        return net


class HookNonlinear(Hooked):
    """Parameter hook that clips a gradient, which isn't linear."""

    per_share = per_process = True
    per_share_reason = "hooks run in backward, on each rank's own gradient, as under torch's DDP"

    def net(self) -> nn.Module:
        net = stack()
        net[1][0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return net


class HookAccumulated(Hooked):
    """Post-accumulate hook that scales gradients."""

    def net(self) -> nn.Module:
        net = stack()
        net[0][0].weight.register_post_accumulate_grad_hook(_halve)
        return net


def _halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)


class HookModule(Hooked):
    """Forward and backward hooks of a module."""

    def net(self) -> nn.Module:
        net = stack()
        net[1][0].register_forward_hook(lambda module, inputs, output: output * 1.5)
        net[1][0].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
        return net


class Attributes(Hooked):
    """Attributes on parameters, read in configure_optimizers."""

    def net(self) -> nn.Module:
        net = stack()
        for parameter in net.parameters():
            parameter.no_decay = parameter.ndim == 1
        return net

    def optimizers(self, net: nn.Module) -> Any:
        groups = [
            {"params": [p for p in net.parameters() if getattr(p, "no_decay", False)], "weight_decay": 0.0},
            {"params": [p for p in net.parameters() if not getattr(p, "no_decay", False)]},
        ]
        return torch.optim.SGD([g for g in groups if g["params"]], lr=0.1, weight_decay=0.5)


class KeepsList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = stack()
        self.kept = list(self.net.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class ListOfParameters(Hooked):
    """List of parameters kept by the module, and given to the optimizer."""

    def net(self) -> nn.Module:
        return KeepsList()

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.SGD(net.kept, lr=0.1)


class OptimizerByName(Hooked):
    """Optimizer over named_parameters."""

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
