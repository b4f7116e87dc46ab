"""A module with all that pickling alone would lose, and what a rank finds of it."""

from functools import partial

import torch
from small import Line
from torch import nn


def doubled(gradient):
    return gradient * 2


def scaled(parameter, gradient):
    return gradient * parameter.scale


def noted(notes, module, *gradients):
    notes.append(type(module).__name__)


class Hooked(Line):
    def __init__(self):
        super().__init__()
        self.notes = []
        self.calls = 0
        weight, bias = self.layer.weight, self.layer.bias
        weight.scale = 3.0
        self.handle = weight.register_hook(doubled)
        weight.register_hook(partial(scaled, weight))
        bias.register_post_accumulate_grad_hook(self.accumulated)
        bias.grad = torch.full((1,), 0.5)
        self.layer.register_full_backward_hook(partial(noted, self.notes))
        self.register_buffer("row", weight.data[0])
        self.register_buffer("learned", torch.ones(1).requires_grad_())
        self.tied = nn.Linear(4, 1, bias=False)
        self.tied.weight = nn.Parameter(weight.data)  # one memory, two parameters
        self.same = nn.Linear(4, 1, bias=False)
        self.same.weight = weight

    def accumulated(self, parameter):
        self.calls += 1
        parameter.grad *= 10


def found(module):
    """Run a backward and return what there is to see."""
    layer = module.layer
    # Another hook, whose id must not be that of one that came along.
    layer.weight.register_hook(partial(scaled, layer.weight))
    layer(torch.ones(2, 4, requires_grad=True)).sum().backward()
    seen = {
        "weight": layer.weight.grad.tolist(),
        "bias": layer.bias.grad.tolist(),
        "calls": module.calls,
        "notes": module.notes,
        "ids": len({id(hook) for hook in layer.weight._backward_hooks.values()}),
        "learned": module.learned.requires_grad,
        "same": module.same.weight is layer.weight,
        "kinds": [type(parameter).__name__ for parameter in module.parameters()],
    }
    module.handle.remove()
    layer.weight.grad = None
    layer(torch.ones(2, 4, requires_grad=True)).sum().backward()
    seen["without the first"] = layer.weight.grad.tolist()
    with torch.no_grad():
        layer.weight.fill_(7.0)
    return {**seen, "row": module.row.tolist(), "tied": module.tied.weight.tolist()}
