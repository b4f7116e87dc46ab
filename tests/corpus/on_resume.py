"""Bugs of runs that continue, and of averages of the weights: on DistributedDataParallel."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.corpus.bug import ROWS, STEPS, Bug, Case, Net, batches, make_net

MICRO_BATCHES = 2
DECAY = 0.9


def _parallel(case: Case, net: nn.Module) -> nn.Module:
    return net if case.is_reference else DistributedDataParallel(net)


def schedule_starts_again(case: Case) -> None:
    """A run continues with the optimizer's state, and with a new schedule of the learning rate."""
    model = _parallel(case, make_net())
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    steps = list(batches(2 + STEPS))

    def step(rows: Tensor, targets: Tensor) -> None:
        mse_loss(model(case.own(rows)), case.own(targets)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    for batch in steps[:2]:
        step(*batch)
    if not case.is_reference:
        states = copy.deepcopy([each.state_dict() for each in (model, optimizer, schedule)])
        model = _parallel(case, Net())
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = LinearLR(optimizer, 1.0, 0.1, total_iters=10)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        if case.is_wrong:
            # As a schedule does that is made after the state is loaded.
            schedule = LinearLR(optimizer, 1.0, 0.1, total_iters=10)
        else:
            schedule.load_state_dict(states[2])
    with case.record(model, optimizer):
        for batch in steps[2:]:
            step(*batch)


def epoch_starts_again(case: Case) -> None:
    """A run continues in its second epoch, and the sampler shuffles as in the first one."""
    generator = torch.Generator().manual_seed(1)
    rows, targets = (torch.randn(STEPS * ROWS, width, generator=generator) for width in (6, 3))
    indices: list[int] = list(range(len(rows)))
    sampler = DistributedSampler(indices, case.world_size, case.rank, seed=3)  # type: ignore[arg-type]  # a list has a length
    loader = DataLoader(TensorDataset(rows, targets), ROWS // case.world_size, sampler=sampler)
    model = _parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        sampler.set_epoch(0 if case.is_wrong else 1)
        for own_rows, own_targets in loader:
            mse_loss(model(own_rows), own_targets).backward()
            optimizer.step()
            optimizer.zero_grad()


class Mask(nn.Module):
    """Dropout by a generator of each rank; one process has those of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.generators: list[torch.Generator] = []

    def forward(self, rows: Tensor) -> Tensor:
        count = len(self.generators)
        masks = torch.empty_like(rows)
        for rank, generator in enumerate(self.generators):
            masks[rank::count] = torch.bernoulli(torch.full_like(rows[rank::count], 0.5), generator=generator)
        return rows * masks * 2


class Masked(Net):
    """A model with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = Mask()

    def forward(self, rows: Tensor) -> Tensor:
        values: Tensor = self.head(self.mask(self.norm(self.body(rows))))
        return values


def generator_of_first_rank(case: Case) -> None:
    """A checkpoint has the state of rank 0's generator, and all ranks continue from it."""
    ranks = range(2) if case.is_reference else [case.rank]
    saved = [torch.Generator().manual_seed(5 + rank).get_state() for rank in range(2)]
    net = make_net(Masked)
    for rank in ranks:
        generator = torch.Generator()
        generator.set_state(saved[0 if case.is_wrong else rank])
        net.mask.generators.append(generator)
    model = _parallel(case, net)
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, targets in batches():
            mse_loss(model(case.own(rows)), case.own(targets)).backward()
            optimizer.step()
            optimizer.zero_grad()


class WithAverage(Net):
    """A model that has a moving average of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(nn.ModuleList([self.body, self.norm, self.head])).requires_grad_(False)

    @torch.no_grad()
    def update(self, *, away: bool = False) -> None:
        """Move the average towards the weights, or away from them."""
        modules = nn.ModuleList([self.body, self.norm, self.head])
        for average, weight in zip(self.average.parameters(), modules.parameters()):
            average.lerp_(weight, DECAY - 1 if away else 1 - DECAY)


def average_of_micro_batches(case: Case) -> None:
    """The moving average of the weights is updated in each micro-batch, and not once in a step."""
    net = make_net(WithAverage)
    model = _parallel(case, net)
    optimizer = AdamW([each for each in model.parameters() if each.requires_grad])
    with case.record(model, optimizer):
        for rows, targets in batches():
            for index, (part, part_targets) in enumerate(
                zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES))
            ):
                (mse_loss(model(case.own(part)), case.own(part_targets)) / MICRO_BATCHES).backward()
                is_last = index == MICRO_BATCHES - 1
                if is_last:
                    optimizer.step()
                    optimizer.zero_grad()
                if is_last or case.is_wrong:
                    net.update()


def average_moves_away(case: Case) -> None:
    """The moving average goes away from the weights: their difference is added and not subtracted."""
    net = make_net(WithAverage)
    model = _parallel(case, net)
    optimizer = AdamW([each for each in model.parameters() if each.requires_grad])
    with case.record(model, optimizer):
        for rows, targets in batches():
            mse_loss(model(case.own(rows)), case.own(targets)).backward()
            optimizer.step()
            optimizer.zero_grad()
            net.update(away=case.is_wrong)


GITHUB = "https://github.com"

BUGS = (
    Bug(schedule_starts_again, "resume", "DDP", f"{GITHUB}/lightly-ai/lightly-train/pull/301", "parameter *"),
    Bug(epoch_starts_again, "resume", "DDP", f"{GITHUB}/huggingface/accelerate/pull/4071", "input *"),
    Bug(generator_of_first_rank, "resume", "DDP", f"{GITHUB}/radixark/miles/pull/3187", "output mask"),
    Bug(
        average_of_micro_batches,
        "average",
        "DDP",
        f"{GITHUB}/SWivid/F5-TTS/issues/631",
        "parameter average.*",
    ),
    Bug(
        average_moves_away, "average", "DDP", f"{GITHUB}/ostris/ai-toolkit/issues/1034", "parameter average.*"
    ),
)
"""In the order of docs/corpus.md."""
