"""Own loops that `stratagem verify` is tried with."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from verified_models import vectors


def _train(runtime, penalty):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
    net, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9))
    loader = runtime.dataloader(DataLoader(vectors(), 8, shuffle=True))
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            runtime.backward(F.cross_entropy(net(x), y) * penalty(x))
            optimizer.step()


def right(runtime):
    _train(runtime, lambda x: 1.0)


def weighted_by_rank(runtime):
    """Its loss depends on what this rank's batch is, beyond a mean over samples."""
    _train(runtime, lambda x: float(x.sum()))


def without_loader(runtime):
    net = nn.Linear(6, 3)
    runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))


# Loops that work on gradients and steps themselves: right under a strategy that is.


def _set_up(runtime):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.3))


def _batches(runtime):
    return runtime.dataloader(DataLoader(vectors(), 8, shuffle=True))


def last_window(runtime):
    net, optimizer = _set_up(runtime)
    for x, y in _batches(runtime):
        with runtime.no_sync(net):
            runtime.backward(F.cross_entropy(net(x), y), net)
        optimizer.step()
        optimizer.zero_grad()


def two_backwards(runtime):
    net, optimizer = _set_up(runtime)
    for x, y in _batches(runtime):
        for loss in [F.cross_entropy(net(view), y) for view in (x, x + 0.3)]:
            runtime.backward(loss, net)
        optimizer.step()
        optimizer.zero_grad()


def closure(runtime):
    net, optimizer = _set_up(runtime)
    for x, y in _batches(runtime):

        def evaluate(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            runtime.backward(loss, net)
            return loss

        optimizer.step(evaluate)


def late_optimizer(runtime):
    torch.manual_seed(3)
    net = runtime.setup(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for x, y in _batches(runtime):
        optimizer.zero_grad()
        runtime.backward(F.cross_entropy(net(x), y), net)
        optimizer.step()


def step_hook(runtime):
    """Steps gradients of norm 1."""
    net, optimizer = _set_up(runtime)

    def before(stepped, *_):
        gradients = [p.grad for group in stepped.param_groups for p in group["params"]]
        norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
        for gradient in gradients:
            gradient.div_(norm)

    optimizer.register_step_pre_hook(before)
    for x, y in _batches(runtime):
        optimizer.zero_grad()
        runtime.backward(F.cross_entropy(net(x), y), net)
        optimizer.step()


def row_written(runtime):
    net, optimizer = _set_up(runtime)
    weight = net[0].weight
    for x, y in _batches(runtime):
        optimizer.zero_grad()
        runtime.backward(F.cross_entropy(net(x), y), net)
        optimizer.step()
        weight.data[3].zero_()


def mean_read(runtime):
    """Takes the mean off a weight."""
    net, optimizer = _set_up(runtime)
    weight = net[0].weight
    for x, y in _batches(runtime):
        optimizer.zero_grad()
        runtime.backward(F.cross_entropy(net(x), y), net)
        optimizer.step()
        with torch.no_grad():
            weight.sub_(weight.mean().item())


def loop_of(name):
    """Return a loop, for `verify_loop`."""
    return globals()[name]
