"""Steps that do more to parameters than compute with them, for tests of xla_fsdp with a process per device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from xla_process_tasks import Tied, Tokens


def halved(gradient: Tensor) -> Tensor:
    return 0.5 * gradient


def grow(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(1.25)


@dataclass(frozen=True)
class Changing(Tokens):
    """Changes parameters of units, and of the module outside of them, in each step."""

    kind: str = "in place"
    steps: int | None = 5

    def net(self) -> nn.Module:
        net: Any = super().net()
        net.kept = [net.embedding.weight, net.blocks[0].up.weight]
        for parameter in net.kept:
            if self.kind == "hooks":
                parameter.register_hook(halved)
            elif self.kind == "hooks of what is accumulated":
                parameter.register_post_accumulate_grad_hook(grow)
        return net

    def before_batch(self, net: Any, index: int) -> None:
        if index == 2 and self.kind == "hooks":
            net.spare.weight.register_hook(halved)
        elif index == 2 and self.kind == "later hooks of what is accumulated":
            net.spare.weight.register_post_accumulate_grad_hook(grow)

    def loss(self, net: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            self.change(net)
        loss = F.cross_entropy(net(batch[0]), batch[1])
        if self.kind == "freeze" and net.calls == 4:
            net.blocks[0].requires_grad_(False)
        if self.kind == "penalty":
            return loss + net.embedding.weight.square().mean() + net.spare.bias.norm()
        if self.kind == "penalty over a unit":
            return loss + net.blocks[0].up.weight.square().mean()
        if self.kind == "unit's weight elsewhere":
            return loss + F.linear(net.embedding(batch[0]), net.blocks[0].up.weight).square().mean()
        return loss

    def change(self, net: Tied) -> None:
        block, kept = net.blocks[1], net.kept
        assert isinstance(kept, list)
        if self.kind == "in place":
            for parameter in net.parameters():
                parameter.clamp_(-0.2, 0.2)
                parameter.data.copy_(0.9 * parameter.data)
            if net.calls % 3:
                net.embedding.weight[net.calls].zero_()
                net.spare.weight.data[0] = 0.1
        elif self.kind == "freeze":
            block.requires_grad_(net.calls % 3 == 0)
            # In a step that doesn't use the spare head, nothing else of what is no unit's is trained.
            net.embedding.requires_grad_(net.calls % 3 == 1)
        elif self.kind == "list" and net.calls == 2:
            kept[0].mul_(0.5)
        elif self.kind == "freeze by the list" and net.calls == 2:
            kept[0].requires_grad_(False)


FOLLOWED = ("in place", "freeze", "hooks", "penalty")
REFUSED = {
    "list": "'net.embedding.weight' was changed, in place or in requires_grad, by way of its shard",
    "freeze by the list": "'net.embedding.weight' was changed, in place or in requires_grad",
    "hooks of what is accumulated": "has a hook of register_post_accumulate_grad_hook",
    "later hooks of what is accumulated": "has a hook of register_post_accumulate_grad_hook",
    "penalty over a unit": "'net.blocks.0.up.weight' was used where this process has its shard alone",
    "unit's weight elsewhere": "'net.blocks.0.up.weight' was used where this process has its shard alone",
}
"""By kind, what is said."""
