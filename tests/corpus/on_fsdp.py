"""Bugs of programs on `fully_shard`, FSDP2: the start, mixed precision, and what isn't a parameter."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import mse_loss
from torch.optim import AdamW

from tests.corpus.bug import Bug, Case, Net, batches, make_net


def _train(case: Case, net: nn.Module) -> None:
    optimizer = AdamW([each for each in net.parameters() if each.requires_grad])
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(net(case.own(rows)), case.own(targets)).backward()
            optimizer.step()
            optimizer.zero_grad()


class Scaled(Net):
    """A model with a table that isn't kept in checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0.5, 1.5, 6), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows * self.table)


def buffer_lost_on_meta(case: Case) -> None:
    """`to_empty` leaves a buffer without values, and the checkpoint doesn't have it."""
    net = make_net(Scaled)
    weights, table = copy.deepcopy(net.state_dict()), net.table
    if not case.is_reference:
        with torch.device("meta"):
            net = Scaled()
        fully_shard(net)
        net.to_empty(device="cpu")
        for name, parameter in net.named_parameters():
            whole = torch.distributed.tensor.distribute_tensor(weights[name], parameter.device_mesh)
            with torch.no_grad():
                parameter.copy_(whole.redistribute(placements=parameter.placements))
        # What memory holds differs from run to run: zeros stand for it.
        net.table = torch.zeros(6) if case.is_wrong else table
    _train(case, net)


def start_of_each_rank(case: Case) -> None:
    """Each rank draws the weights from its own seed, and `fully_shard` broadcasts none."""
    torch.manual_seed(case.rank if case.is_wrong else 0)
    net = Net()
    if not case.is_reference:
        fully_shard(net)
    _train(case, net)


def reduced_in_bf16(case: Case) -> None:
    """Gradients are reduced in bf16, as the policy doesn't get the dtype that was asked for."""
    net = make_net()
    if not case.is_reference:
        policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if case.is_wrong else torch.float32)
        fully_shard(net, mp_policy=policy)
    _train(case, net)


GITHUB = "https://github.com"

BUGS = (
    Bug(buffer_lost_on_meta, "buffers", "FSDP2", f"{GITHUB}/hiyouga/LlamaFactory/pull/10820", "start table"),
    Bug(start_of_each_rank, "sharding", "FSDP2", f"{GITHUB}/pytorch/torchtitan/issues/1777", "start *"),
    Bug(
        reduced_in_bf16,
        "precision",
        "FSDP2",
        f"{GITHUB}/ibm-granite/dolomite-engine/pull/141",
        "parameter gradient *",
    ),
)
"""In the order of docs/corpus.md."""
