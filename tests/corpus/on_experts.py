"""Bugs of mixtures of experts: ranks have their own rows, and their own experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather, all_reduce
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

from tests.corpus.bug import Bug, Case, batches, make_net

EXPERTS, CHOSEN = 4, 2
LIMIT = 0.05
MICRO_BATCHES = 2
BALANCE = 0.1


class Experts(nn.Module):
    """Routes each row to two of four experts; a rank may have some of them, by their numbers in the whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, EXPERTS)
        self.experts = nn.ModuleDict({str(number): nn.Linear(6, 6) for number in range(EXPERTS)})
        self.head = nn.Linear(6, 3)
        self.is_split = self.absent_ones_count = False

    def keep(self, case: Case) -> None:
        """Leave this rank its own experts."""
        count = EXPERTS // case.world_size
        for number in range(EXPERTS):
            if number // count != case.rank:
                del self.experts[str(number)]
        self.is_split = True

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.router(rows).softmax(1)
        values: Tensor = self.head(self.mixed(rows, scores))
        return values

    def mixed(self, rows: Tensor, scores: Tensor) -> Tensor:
        """Return the weighted sum of what the chosen experts make of each row."""
        if self.is_split:
            count = len(rows)
            rows, scores = (torch.cat(all_gather(each)) for each in (rows, scores))
        weights, numbers = scores.topk(CHOSEN)
        mixed = torch.zeros_like(rows)
        made = {int(name): expert(rows) for name, expert in self.experts.items()}
        for number, values in made.items():
            mixed = mixed + (weights * (numbers == number)).sum(1, keepdim=True) * values
        if self.absent_ones_count:
            # The weights are zero; their gradient isn't.
            here = sum(numbers == number for number in made)
            absent = (weights * (1 - here)).sum(1, keepdim=True)
            mixed = mixed + (absent - absent.detach()) * next(iter(made.values()))
        if self.is_split:
            mixed = all_reduce(mixed)[dist.get_rank() * count :][:count]
        return mixed


def _experts_of(case: Case) -> Any:
    net = make_net(Experts)
    if not case.is_reference:
        net.keep(case)
    return net


def _reduce(case: Case, net: Experts, *, experts: bool = True) -> None:
    """Average gradients over ranks; an expert's has come from the rows of all ranks already."""
    if case.is_reference:
        return
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        if not name.startswith("experts."):
            dist.all_reduce(parameter.grad)
        elif not experts:
            continue
        parameter.grad /= case.world_size


def gradient_of_absent_experts(case: Case) -> None:
    """The weights of experts that are on other ranks are zero, and the router gets their gradient all the same."""
    net = _experts_of(case)
    net.absent_ones_count = case.is_wrong
    optimizer = AdamW(net.parameters())
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(net(case.own(rows)), case.own(targets)).backward()
            _reduce(case, net)
            optimizer.step()
            optimizer.zero_grad()


def experts_not_averaged(case: Case) -> None:
    """Gradients of experts are sums over the rows of all ranks, and nothing divides them by the number of ranks."""
    net = _experts_of(case)
    optimizer = AdamW(net.parameters())
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(net(case.own(rows)), case.own(targets)).backward()
            _reduce(case, net, experts=not case.is_wrong)
            optimizer.step()
            optimizer.zero_grad()


def norm_of_own_experts(case: Case) -> None:
    """Each rank clips by a norm that lacks the experts of other ranks."""
    net = _experts_of(case)
    optimizer = SGD(net.parameters(), lr=0.1)
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(net(case.own(rows)), case.own(targets)).backward()
            _reduce(case, net)
            squares = {True: torch.zeros(()), False: torch.zeros(())}
            for name, parameter in net.named_parameters():
                assert parameter.grad is not None
                squares[name.startswith("experts.")] += parameter.grad.square().sum()
            if case.form == "right":
                dist.all_reduce(squares[True])
            norm = (squares[True] + squares[False]).sqrt()
            nn.utils.clip_grads_with_norm_(net.parameters(), LIMIT, norm)
            optimizer.step()
            optimizer.zero_grad()


class Balanced(Experts):
    """Returns its values, and a loss that keeps the router's values small."""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # with a loss
        logits = self.router(rows)
        values: Tensor = self.head(self.mixed(rows, logits.softmax(1)))
        return values, logits.logsumexp(1).square().mean()


def auxiliary_losses_added(case: Case) -> None:
    """The loss of each micro-batch is divided by their number, and the router's auxiliary loss isn't."""
    net = make_net(Balanced)
    model = net if case.is_reference else DistributedDataParallel(net)
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, targets in batches():
            for part, part_targets in zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
                values, auxiliary = model(case.own(part))
                loss = mse_loss(values, case.own(part_targets)) / MICRO_BATCHES
                (loss + BALANCE * (auxiliary if case.is_wrong else auxiliary / MICRO_BATCHES)).backward()
            optimizer.step()
            optimizer.zero_grad()


GITHUB = "https://github.com"

BUGS = (
    Bug(
        gradient_of_absent_experts,
        "experts",
        "expert parallelism",
        f"{GITHUB}/huggingface/transformers/issues/48687",
        "* gradient router*",
    ),
    Bug(
        experts_not_averaged,
        "experts",
        "expert parallelism",
        f"{GITHUB}/NVIDIA/Megatron-LM/pull/5956",
        "parameter gradient experts.*",
    ),
    Bug(
        norm_of_own_experts,
        "experts",
        "expert parallelism",
        f"{GITHUB}/hpcaitech/ColossalAI/issues/2192",
        "parameter gradient *",
    ),
    Bug(
        auxiliary_losses_added,
        "experts",
        "DDP",
        f"{GITHUB}/NVIDIA-NeMo/Automodel/pull/3359",
        "* gradient router*",
    ),
)
"""In the order of docs/corpus.md."""
