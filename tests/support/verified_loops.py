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
