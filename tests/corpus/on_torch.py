"""Bugs of programs on PyTorch itself: one process, DistributedDataParallel, `fully_shard`, and its pipelines."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.corpus.bug import ROWS, Bug, Case, Net, batches, make_net

MICRO_BATCHES = 2


def parallel(case: Case, net: nn.Module, **options: bool) -> nn.Module:
    """Wrap a model in DistributedDataParallel, except in the reference."""
    return net if case.is_reference else DistributedDataParallel(net, **options)


def micro_batches(rows: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the parts of a batch."""
    yield from zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES))


# Scaling ------------------------------------------------------------------------------------------


def loss_times_world_size(case: Case) -> None:
    """The loss is multiplied by the number of ranks, and DDP averages."""
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, targets in batches():
            loss = mse_loss(model(case.own(rows)), case.own(targets))
            (loss * case.world_size if case.is_wrong else loss).backward()
            optimizer.step()
            optimizer.zero_grad()


def loss_over_world_size(case: Case) -> None:
    """The loss is divided by the number of ranks, and DDP averages."""
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, targets in batches():
            loss = mse_loss(model(case.own(rows)), case.own(targets))
            (loss / case.world_size if case.is_wrong else loss).backward()
            optimizer.step()
            optimizer.zero_grad()


def mean_of_rank_means(case: Case) -> None:
    """Each rank divides by the number of its own valid rows, which differ."""
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, targets in batches():
            valid = torch.tensor([1.0, 0, 1, 0, 1, 1, 1, 0])
            own = case.own(valid)
            errors = (model(case.own(rows)) - case.own(targets)).square().sum(1) * own
            count = own.sum() if case.is_wrong else valid.sum() / case.world_size
            (errors.sum() / count).backward()
            optimizer.step()
            optimizer.zero_grad()


def gathered_without_gradient(case: Case) -> None:
    """Values are gathered by a collective that has no gradient, and the loss is of all of them."""
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, _ in batches():
            values = model(case.own(rows))
            if case.is_wrong:
                gathered = [torch.empty_like(values) for _ in range(case.world_size)]
                dist.all_gather(gathered, values.detach())
                gathered[case.rank] = values
                values = torch.cat(gathered)
            elif not case.is_reference:
                values = torch.cat(all_gather(values))
            values.var(0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


# Accumulation -------------------------------------------------------------------------------------


def micro_batches_not_averaged(case: Case) -> None:
    """Losses of micro-batches are added without being divided by their number."""
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for batch in batches():
            for rows, targets in micro_batches(*batch):
                loss = mse_loss(model(case.own(rows)), case.own(targets))
                (loss if case.is_wrong else loss / MICRO_BATCHES).backward()
            optimizer.step()
            optimizer.zero_grad()


def synchronized_too_early(case: Case) -> None:
    """Gradients are reduced in the first micro-batch, and not in the last one."""
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for batch in batches():
            for index, (rows, targets) in enumerate(micro_batches(*batch)):
                is_last = index == (0 if case.is_wrong else MICRO_BATCHES - 1)
                quiet = isinstance(model, DistributedDataParallel) and not is_last
                with model.no_sync() if quiet else nullcontext():
                    (mse_loss(model(case.own(rows)), case.own(targets)) / MICRO_BATCHES).backward()
            optimizer.step()
            optimizer.zero_grad()


def mean_of_micro_batch_means(case: Case) -> None:
    """Each micro-batch divides by the number of its own valid rows."""
    net = make_net()
    optimizer = AdamW(net.parameters())
    with case.record(net, optimizer):
        for batch in batches():
            valid = torch.tensor([1.0, 1, 1, 1, 1, 0, 0, 0])
            parts = zip(micro_batches(*batch), valid.chunk(MICRO_BATCHES))
            for (rows, targets), own in parts:
                errors = (net(rows) - targets).square().sum(1) * own
                count = own.sum() * MICRO_BATCHES if case.is_wrong else valid.sum()
                (errors.sum() / count).backward()
            optimizer.step()
            optimizer.zero_grad()


def cleared_in_each_micro_batch(case: Case) -> None:
    """Gradients are set to zero before each micro-batch."""
    net = make_net()
    optimizer = AdamW(net.parameters())
    with case.record(net, optimizer):
        for batch in batches():
            optimizer.zero_grad()
            for rows, targets in micro_batches(*batch):
                if case.is_wrong:
                    optimizer.zero_grad()
                (mse_loss(net(rows), targets) / MICRO_BATCHES).backward()
            optimizer.step()


# Clipping -----------------------------------------------------------------------------------------


def clipped_by_norm_of_shards(case: Case) -> None:
    """Each rank clips by the norm of its own shards."""
    net = make_net()
    if not case.is_reference:
        fully_shard(net)
    optimizer = AdamW(net.parameters())
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(net(case.own(rows)), case.own(targets)).backward()
            if case.is_wrong:
                shards = [each.grad.to_local() for each in net.parameters()]
                norm = math.sqrt(sum(float(each.square().sum()) for each in shards))
                for shard in shards:
                    shard.mul_(min(1.0, 0.01 / norm))
            else:
                nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()


def clipped_before_unscaling(case: Case) -> None:
    """Gradients are clipped while they are still multiplied by the scale of fp16."""
    net = make_net()
    optimizer = SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=not case.is_reference)
    with case.record(net, optimizer):
        for rows, targets in batches():
            scaler.scale(mse_loss(net(rows), targets)).backward()
            if not case.is_wrong:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def clipped_in_each_micro_batch(case: Case) -> None:
    """Gradients are clipped after each micro-batch, not once before the step."""
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for batch in batches():
            for rows, targets in micro_batches(*batch):
                (mse_loss(model(case.own(rows)), case.own(targets)) / MICRO_BATCHES).backward()
                if case.is_wrong:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()


# Sharding, ties, buffers --------------------------------------------------------------------------


class Tied(nn.Module):
    """A head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        values: Tensor = self.head(self.mix(self.embed(tokens)).tanh())
        return values


def tie_lost_on_meta(case: Case) -> None:
    """`to_empty` gives each module its own parameter, and the tie isn't made again."""
    net = make_net(Tied)
    weights = copy.deepcopy(net.state_dict())
    if not case.is_reference:
        with torch.device("meta"):
            net = Tied()
        net.to_empty(device="cpu")
        net.load_state_dict(weights)
        if not case.is_wrong:
            net.head.weight = net.embed.weight
        fully_shard(net)
    optimizer = AdamW(net.parameters())
    generator = torch.Generator().manual_seed(1)
    with case.record(net, optimizer):
        for _ in range(3):
            tokens = case.own(torch.randint(0, 12, (ROWS, 5), generator=generator))
            nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()


def optimizer_before_sharding(case: Case) -> None:
    """The optimizer is made before `fully_shard` replaces the parameters, and steps the old ones."""
    net = make_net()
    if not case.is_reference and not case.is_wrong:
        fully_shard(net)
    optimizer = AdamW(net.parameters())
    if case.is_wrong:
        fully_shard(net)
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(net(case.own(rows)), case.own(targets)).backward()
            optimizer.step()
            net.zero_grad()


def called_without_wrapper(case: Case) -> None:
    """The model is called, and not DistributedDataParallel around it: nothing reduces the gradients."""
    net = make_net()
    model = parallel(case, net)
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, targets in batches():
            mse_loss((net if case.is_wrong else model)(case.own(rows)), case.own(targets)).backward()
            optimizer.step()
            optimizer.zero_grad()


class Centred(Net):
    """A model with a running mean of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.reduce = False

    def forward(self, rows: Tensor) -> Tensor:
        mean = rows.detach().mean(0)
        if self.reduce:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        self.mean.lerp_(mean, 0.1)
        return super().forward(rows)


def buffer_of_one_rank(case: Case) -> None:
    """Each rank keeps a running mean of its own rows, and buffers aren't broadcast."""
    net = make_net(Centred)
    net.reduce = case.form == "right"
    model = parallel(case, net, broadcast_buffers=False)
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for rows, targets in batches():
            mse_loss(model(case.own(rows)), case.own(targets)).backward()
            optimizer.step()
            optimizer.zero_grad()


# Data and randomness ------------------------------------------------------------------------------


def _read(case: Case, sampler: DistributedSampler[object], *, new_epochs: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, targets = (torch.randn(ROWS, width, generator=generator) for width in (6, 3))
    loader = DataLoader(TensorDataset(rows, targets), ROWS // case.world_size, sampler=sampler)
    model = parallel(case, make_net())
    optimizer = AdamW(model.parameters())
    with case.record(model, optimizer):
        for epoch in range(3):
            if new_epochs:
                sampler.set_epoch(epoch)
            for own_rows, own_targets in loader:
                mse_loss(model(own_rows), own_targets).backward()
                optimizer.step()
                optimizer.zero_grad()


def sampler_of_one_rank(case: Case) -> None:
    """All ranks read the same rows: the sampler doesn't know of the ranks."""
    count = 1 if case.is_wrong else case.world_size
    rows: list[int] = list(range(ROWS))
    sampler = DistributedSampler(rows, count, 0 if case.is_wrong else case.rank, seed=3)  # type: ignore[arg-type]  # a list has a length
    _read(case, sampler, new_epochs=True)


def sampler_seeded_by_rank(case: Case) -> None:
    """Each rank shuffles by its own seed, so that ranks read some rows twice and others never."""
    rows: list[int] = list(range(ROWS))
    seed = 3 + (case.rank if case.is_wrong else 0)
    sampler = DistributedSampler(rows, case.world_size, case.rank, seed=seed)  # type: ignore[arg-type]  # a list has a length
    _read(case, sampler, new_epochs=True)


def recomputed_with_other_dropout(case: Case) -> None:
    """Activation checkpointing draws another dropout mask in backward."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 16))
            self.head = nn.Linear(16, 3)

        def forward(self, rows: Tensor) -> Tensor:
            if case.is_reference:
                values: Tensor = self.head(self.body(rows))
                return values
            kept = not case.is_wrong
            inner = checkpoint(self.body, rows, use_reentrant=False, preserve_rng_state=kept)
            return self.head(inner)

    net = make_net(Block)
    optimizer = AdamW(net.parameters())
    with case.record(net, optimizer):
        for step, (rows, targets) in enumerate(batches()):
            torch.manual_seed(step)
            mse_loss(net(rows), targets).backward()
            optimizer.step()
            optimizer.zero_grad()


# Optimizer, schedule, resume ----------------------------------------------------------------------


def _resumed(case: Case, *, state: bool, reverse: bool) -> None:
    """Train two steps, continue from a checkpoint, and record what follows."""
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    optimizer = AdamW(net.parameters())
    steps = list(batches(5))

    def step(rows: Tensor) -> None:
        mse_loss(net(rows), rows.roll(1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    for rows, _ in steps[:2]:
        step(rows)
    if not case.is_reference:
        kept = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        net.load_state_dict(kept[0])
        parameters = list(net.parameters())
        # Both layers have the same shapes, so that a state of the other one fits.
        optimizer = AdamW(parameters[2:] + parameters[:2] if reverse else parameters)
        if state:
            optimizer.load_state_dict(kept[1])
    with case.record(net, optimizer):
        for rows, _ in steps[2:]:
            step(rows)


def resumed_without_optimizer_state(case: Case) -> None:
    """A run continues with the weights, and with a new optimizer."""
    _resumed(case, state=not case.is_wrong, reverse=False)


def state_of_other_parameters(case: Case) -> None:
    """An optimizer's state is matched by the order of parameters, which is another one when it is loaded."""
    _resumed(case, state=True, reverse=case.is_wrong)


def decay_of_normalization(case: Case) -> None:
    """Parameters without weight decay are chosen by a name that this model doesn't use."""
    net = make_net()
    excluded = ("bias", "LayerNorm.weight") if case.is_wrong else ("bias", "norm.weight")
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in net.named_parameters():
        groups[any(each in name for each in excluded)].append(parameter)
    optimizer = AdamW(
        [{"params": groups[False]}, {"params": groups[True], "weight_decay": 0.0}], weight_decay=0.1
    )
    with case.record(net, optimizer):
        for rows, targets in batches():
            mse_loss(net(rows), targets).backward()
            optimizer.step()
            optimizer.zero_grad()


def schedule_of_micro_batches(case: Case) -> None:
    """The learning rate's schedule makes a step for each micro-batch."""
    net = make_net()
    optimizer = SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    with case.record(net, optimizer):
        for batch in batches():
            for index, (rows, targets) in enumerate(micro_batches(*batch)):
                (mse_loss(net(rows), targets) / MICRO_BATCHES).backward()
                if index == MICRO_BATCHES - 1:
                    optimizer.step()
                    optimizer.zero_grad()
                if case.is_wrong or index == MICRO_BATCHES - 1:
                    schedule.step()


# Precision, context, pipeline ---------------------------------------------------------------------


class Rotary(nn.Module):
    """Cosines of positions times frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.0 / 1000.0 ** (torch.arange(8) / 8))

    def forward(self, values: Tensor) -> Tensor:
        positions = torch.arange(2000, 2000 + values.shape[1], dtype=torch.float32)
        angles = positions[:, None] * self.frequencies.float()
        return values * angles.cos().to(values.dtype)


class Positioned(nn.Module):
    """Tokens whose values depend on their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.rotary = Rotary()
        self.head = nn.Linear(8, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        values: Tensor = self.head(self.rotary(self.embed(tokens)))
        return values


def frequencies_in_bf16(case: Case) -> None:
    """A model is cast to bf16 as a whole, with its table of rotary frequencies."""
    net = make_net(Positioned)
    frequencies = net.rotary.frequencies
    net.to(torch.bfloat16)
    if not case.is_wrong:
        net.rotary.frequencies = frequencies
    optimizer = SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    with case.record(net, optimizer):
        for _ in range(3):
            tokens = torch.randint(0, 12, (ROWS, 5), generator=generator)
            nn.functional.cross_entropy(net(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()


class Placed(nn.Module):
    """Tokens with learned positions, which begin at `first`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.position = nn.Embedding(6, 8)
        self.head = nn.Linear(8, 12)
        self.first = 0

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(self.first, self.first + tokens.shape[1]).expand(tokens.shape)
        values: Tensor = self.head((self.embed(tokens) + self.position(places)).tanh())
        return values


def positions_of_the_shard(case: Case) -> None:
    """Ranks have a part of each sequence, and each counts positions from zero."""
    net = make_net(Placed)
    length = 6 // case.world_size
    net.first = 0 if case.is_wrong else case.rank * length
    model = parallel(case, net)
    optimizer = AdamW(model.parameters())
    generator = torch.Generator().manual_seed(1)
    with case.record(model, optimizer):
        for _ in range(3):
            tokens = torch.randint(0, 12, (ROWS, 6), generator=generator)
            own = tokens[:, case.rank * length : (case.rank + 1) * length]
            nn.functional.cross_entropy(model(own).flatten(0, 1), own.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()


def pipeline_scales_again(case: Case) -> None:
    """A pipeline divides all gradients by its number of chunks, also those that were accumulated before."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    chunks = 2
    if not case.is_reference:
        for name in ("0", "1") if case.rank else ("2",):
            delattr(net, name)
        scale = "scale_grads"
        stage = PipelineStage(net, case.rank, case.world_size, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, chunks, loss_fn=mse_loss, **{scale: case.is_wrong})
    optimizer = SGD(net.parameters(), lr=0.1)
    with case.record(net, optimizer):
        for batch in batches():
            for rows, targets in micro_batches(*batch):
                if case.is_reference:
                    (mse_loss(net(rows), targets) / MICRO_BATCHES).backward()
                elif case.rank == 0:
                    schedule.step(rows)
                else:
                    schedule.step(target=targets)
            if not case.is_reference:
                divisor = MICRO_BATCHES * (1 if case.is_wrong else chunks)
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= divisor
            optimizer.step()
            optimizer.zero_grad()


GITHUB = "https://github.com"

BUGS = (
    Bug(
        loss_times_world_size,
        "scaling",
        "DDP",
        f"{GITHUB}/neuralmagic/sparseml/pull/135",
        "parameter gradient *",
    ),
    Bug(loss_over_world_size, "scaling", "DDP", f"{GITHUB}/sanderwood/bgpt/issues/5", "parameter gradient *"),
    Bug(mean_of_rank_means, "scaling", "DDP", f"{GITHUB}/huggingface/transformers/pull/34373", "*gradient *"),
    Bug(
        gathered_without_gradient,
        "scaling",
        "DDP",
        f"{GITHUB}/ShiqiYu/OpenGait/issues/36",
        "parameter gradient *",
    ),
    Bug(
        micro_batches_not_averaged,
        "accumulation",
        "DDP",
        f"{GITHUB}/verl-project/verl/pull/3332",
        "parameter gradient *",
    ),
    Bug(
        synchronized_too_early,
        "accumulation",
        "DDP",
        f"{GITHUB}/modelscope/FunASR/pull/3472",
        "parameter gradient *",
    ),
    Bug(
        mean_of_micro_batch_means,
        "accumulation",
        "PyTorch",
        f"{GITHUB}/huggingface/transformers/issues/24725",
        "*gradient *",
        world_size=1,
    ),
    Bug(
        cleared_in_each_micro_batch,
        "accumulation",
        "PyTorch",
        f"{GITHUB}/bytetriper/RAE/issues/67",
        "parameter gradient *",
        world_size=1,
    ),
    Bug(
        clipped_by_norm_of_shards,
        "clipping",
        "FSDP2",
        f"{GITHUB}/pytorch/pytorch/issues/170862",
        "parameter gradient *",
    ),
    Bug(
        clipped_before_unscaling,
        "clipping",
        "PyTorch",
        f"{GITHUB}/pytorch/examples/issues/1196",
        "parameter gradient *",
        world_size=1,
    ),
    Bug(
        clipped_in_each_micro_batch,
        "clipping",
        "DDP",
        f"{GITHUB}/Deci-AI/super-gradients/pull/653",
        "parameter gradient *",
    ),
    Bug(
        tie_lost_on_meta,
        "ties",
        "FSDP2",
        f"{GITHUB}/verl-project/verl/issues/7834",
        "parameter gradient embed.*",
    ),
    Bug(
        optimizer_before_sharding,
        "sharding",
        "FSDP2",
        f"{GITHUB}/huggingface/accelerate/issues/3209",
        "parameter body.0.weight",
    ),
    Bug(
        called_without_wrapper,
        "sharding",
        "DDP",
        f"{GITHUB}/intel/e2eAIOK/pull/198",
        "parameter gradient *",
    ),
    Bug(buffer_of_one_rank, "buffers", "DDP", f"{GITHUB}/open-mmlab/mmdetection/issues/2539", "buffer mean"),
    Bug(sampler_of_one_rank, "data", "DDP", f"{GITHUB}/Parskatt/RoMa/issues/32", "input *"),
    Bug(sampler_seeded_by_rank, "data", "DDP", f"{GITHUB}/NVlabs/LongLive/issues/71", "input *"),
    Bug(
        recomputed_with_other_dropout,
        "randomness",
        "PyTorch",
        f"{GITHUB}/openai/guided-diffusion/issues/167",
        "*gradient body.*",
        world_size=1,
    ),
    Bug(
        resumed_without_optimizer_state,
        "resume",
        "PyTorch",
        f"{GITHUB}/KempnerInstitute/KempnerForge/pull/115",
        "optimizer state *",
        world_size=1,
    ),
    Bug(
        state_of_other_parameters,
        "optimizer state",
        "PyTorch",
        f"{GITHUB}/pytorch/pytorch/issues/1489",
        "optimizer state *",
        world_size=1,
    ),
    Bug(
        decay_of_normalization,
        "optimizer state",
        "PyTorch",
        f"{GITHUB}/deepspeedai/DeepSpeedExamples/pull/755",
        "parameter norm.weight",
        world_size=1,
    ),
    Bug(
        schedule_of_micro_batches,
        "optimizer state",
        "PyTorch",
        f"{GITHUB}/ludwig-ai/ludwig/pull/3555",
        "parameter *",
        world_size=1,
    ),
    Bug(
        frequencies_in_bf16,
        "precision",
        "PyTorch",
        f"{GITHUB}/huggingface/transformers/issues/25681",
        "output rotary",
        world_size=1,
    ),
    Bug(
        positions_of_the_shard,
        "context",
        "DDP",
        f"{GITHUB}/NVIDIA/Megatron-LM/issues/560",
        "output position",
    ),
    Bug(
        pipeline_scales_again,
        "pipeline",
        "torch pipelining",
        f"{GITHUB}/pytorch/torchtitan/pull/1732",
        "parameter gradient *",
    ),
)
"""In the order of docs/corpus.md."""
