"""The presets train as the same algorithms written by hand on plain torch, in 2 and 4 processes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_ddp import DDPStrategy
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS = 14
POWER = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 3}
LOCAL = {"start_localSGD_iter": 4}


def launched(function: Callable[..., Any], devices: int, *args: Any, **options: Any) -> Any:
    """Return what rank 0 returns of `function(runtime, *args)`."""
    strategy = DDPStrategy(start_method="fork", timeout_s=200, **options)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices)
    return runtime.launch(function, *args, quiet=True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Another one for each rank and micro-batch."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [
        (torch.randn(4, 12, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(count)
    ]


def by_stratagem(runtime: Any, accumulate: int) -> nn.Module:
    plain = net()
    model, optimizer = runtime.setup(plain, optimizer_of(plain), accumulate=accumulate)
    for index, (x, y) in enumerate(batches(STEPS * accumulate)):
        if (index + 1) % accumulate:
            with runtime.no_sync(model):
                runtime.backward(F.cross_entropy(model(x), y) / accumulate, model)
            continue
        runtime.backward(F.cross_entropy(model(x), y) / accumulate, model)
        runtime.clip(optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
    return plain


def by_hand(accumulate: int, register: Any, averager: Any) -> nn.Module:
    plain = net()
    model, optimizer = DistributedDataParallel(plain), optimizer_of(plain)
    optimizer.rank_local = True  # between averages, replicas differ
    register(model)
    average = averager()
    for index, (x, y) in enumerate(batches(STEPS * accumulate)):
        if (index + 1) % accumulate:
            with model.no_sync():
                (F.cross_entropy(model(x), y) / accumulate).backward()
            continue
        (F.cross_entropy(model(x), y) / accumulate).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        if average is not None:
            average.average_parameters(plain.parameters())
        optimizer.zero_grad()
    return plain


def apart(ours: nn.Module, theirs: nn.Module) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours.parameters(), theirs.parameters()))


def compared(runtime: Any, register: Any, averager: Any) -> tuple[float, float]:
    """How far we are from the algorithm by hand, and that from plain averages of gradients, at most."""
    differences, effects = [], []
    for accumulate in (1, 2):
        hand = by_hand(accumulate, register, averager)
        plain = by_hand(accumulate, lambda model: None, lambda: None)
        differences.append(apart(by_stratagem(runtime, accumulate), hand))
        effects.append(apart(plain, hand))
    gathered = runtime.collectives.gather_objects((max(differences), min(effects)))
    return max(d for d, _ in gathered), min(e for _, e in gathered)


def nothing() -> None:
    return None


def register_fp16(model: Any) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def register_bf16(model: Any) -> None:
    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations in strings
        mean = (bucket.buffer().to(torch.bfloat16) / dist.get_world_size()).contiguous()
        dist.all_reduce(mean)
        future: Any = torch.futures.Future()
        future.set_result(mean.to(torch.float32))
        return future

    model.register_comm_hook(None, hook)


def register_power_sgd(model: Any) -> None:
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, **POWER), powerSGD_hook.powerSGD_hook)


def register_local(size: int) -> Callable[[Any], None]:
    def register(model: Any) -> None:
        group = dist.new_subgroups(group_size=size)[0] if size > 1 else None
        state = post_localSGD_hook.PostLocalSGDState(None, group, LOCAL["start_localSGD_iter"], size > 1)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)

    return register


def periodic(period: int) -> Callable[[], Any]:
    return lambda: PeriodicModelAverager(period, warmup_steps=4)


def hierarchical(*levels: tuple[int, int]) -> Callable[[], Any]:
    return lambda: HierarchicalModelAverager(OrderedDict(levels), warmup_steps=4)


CASES: dict[str, tuple[int, dict[str, Any], Any, Any]] = {
    "fp16": (2, {"ddp_comm_hook": "fp16"}, register_fp16, nothing),
    "bf16": (2, {"ddp_comm_hook": "bf16"}, register_bf16, nothing),
    "torch's bf16": (2, {"ddp_comm_hook": default_hooks.bf16_compress_hook}, register_bf16, nothing),
    "powersgd": (2, {"ddp_comm_hook": "powersgd", "ddp_comm_state": POWER}, register_power_sgd, nothing),
    "powersgd on 4": (4, {"ddp_comm_hook": "powersgd", "ddp_comm_state": POWER}, register_power_sgd, nothing),
    "post-local SGD": (
        2,
        {"ddp_comm_hook": "post_local_sgd", "ddp_comm_state": LOCAL, "model_averaging_period": 3},
        register_local(1),
        periodic(3),
    ),
    "gradients of pairs": (
        4,
        {
            "ddp_comm_hook": "post_local_sgd",
            "ddp_comm_state": {**LOCAL, "subgroup_size": 2},
            "model_averaging_period": 3,
        },
        register_local(2),
        periodic(3),
    ),
    "hierarchy": (
        4,
        {"ddp_comm_hook": "post_local_sgd", "ddp_comm_state": LOCAL, "period_group_size": {2: 2, 4: 4}},
        register_local(1),
        hierarchical((2, 2), (4, 4)),
    ),
    "derived hierarchy": (
        4,
        {"ddp_comm_hook": "post_local_sgd", "ddp_comm_state": LOCAL, "period_group_size": "auto"},
        register_local(1),
        # Periods of 4 and 8 are counted from the end of the warm-up, which torch's own counts from 0.
        lambda: HierarchicalModelAverager(OrderedDict([(4, 2), (8, 4)]), warmup_steps=0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_algorithm_by_hand_also_accumulating_and_clipped(case: str) -> None:
    devices, options, register, averager = CASES[case]
    if case == "derived hierarchy":
        averager = _shifted(averager)
    difference, effect = launched(compared, devices, register, averager, **options)
    assert difference <= 1e-6
    assert effect > 1e-5, "the algorithm changes nothing, so that nothing was tried"


def _shifted(averager: Callable[[], Any]) -> Callable[[], Any]:
    """An averager whose count begins after the warm-up."""

    class Shifted:
        def __init__(self) -> None:
            self.inner, self.left = averager(), LOCAL["start_localSGD_iter"]

        def average_parameters(self, parameters: Any) -> None:
            if self.left:
                self.left -= 1
            else:
                self.inner.average_parameters(parameters)

    return Shifted


def gradients(runtime: Any) -> list[Tensor]:
    plain = net()
    model, _ = runtime.setup(plain, optimizer_of(plain))
    for x, y in batches(1):
        runtime.backward(F.cross_entropy(model(x), y))
    return [p.grad for p in plain.parameters()]


def test_compressed_gradients_are_within_their_dtype_of_the_true_ones() -> None:
    true = launched(gradients, 2)
    for name, digits in (("fp16", 11), ("bf16", 8)):
        found = launched(gradients, 2, ddp_comm_hook=name)
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, true))
        # Two roundings: of each rank's gradient, and of their sum.
        assert 0 < error <= 3 * 2.0**-digits, name


def drift(runtime: Any, late: float = 0) -> list[float]:
    """After each step, how far parameters of rank 0 and of the others are apart.

    Args:
        runtime: of a rank.
        late: seconds by which each layer's backward takes longer, the higher the rank.
    """
    plain = net()
    if late:
        plain[0].unused = nn.Linear(3, 3)
        for layer in plain[1:]:
            layer.register_full_backward_hook(lambda *_: time.sleep(late * runtime.rank))
    model, optimizer = runtime.setup(plain, optimizer_of(plain))
    found = []
    for x, y in batches(STEPS):
        runtime.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        flat = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
        ranks = runtime.collectives.all_gather(flat)
        found.append(float((ranks - ranks[0]).abs().max()))
    return found


def test_averaging_makes_parameters_equal_exactly_at_its_period() -> None:
    found = launched(drift, 2, ddp_comm_hook="post_local_sgd", ddp_comm_state=LOCAL, model_averaging_period=3)
    # Steps 0 to 3 are warm-up; 4, 7, 10 and 13 average.
    equal = [index for index, difference in enumerate(found) if difference == 0]
    assert equal == [0, 1, 2, 3, 4, 7, 10, 13]
    assert min(difference for index, difference in enumerate(found) if index not in equal) > 1e-4


@pytest.mark.parametrize("hook", ["powersgd", "torch's"])
def test_powersgd_in_several_buckets_with_unused_parameters_on_ranks_that_are_not_in_step(hook: str) -> None:
    named = {"ddp_comm_hook": "powersgd", "ddp_comm_state": POWER}
    torchs = {
        "ddp_comm_hook": powerSGD_hook.powerSGD_hook,
        "ddp_comm_state": powerSGD_hook.PowerSGDState(None, **POWER),
    }
    how = {"bucket_cap_mb": 0.001, "find_unused_parameters": True}
    found = launched(drift, 2, 0.01, **(named if hook == "powersgd" else torchs), **how)
    assert found == [0] * STEPS


class ByHand(stratagem.Module):
    """Runs two backwards of its own before a step, whose size is 1: its parameters tell the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for x, y in batches(2):
            self.manual_backward(F.cross_entropy(self.net(x), y))
        self.optimizers().step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.zeros(2)), 1)


def stepped(tmp_path: Path, **options: Any) -> list[Tensor]:
    module = ByHand()
    stratagem.Trainer(
        strategy=DDPStrategy(start_method="fork", timeout_s=200, **options),
        accelerator="cpu",
        devices=2,
        max_steps=1,
        run_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(module)
    return [(after - before).detach() for after, before in zip(module.parameters(), net().parameters())]


def test_manual_optimization_sends_what_the_preset_says(tmp_path: Path) -> None:
    true = stepped(tmp_path)
    for name, digits in (("fp16", 11), ("bf16", 8)):
        found = stepped(tmp_path, ddp_comm_hook=name)
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, true))
        # The second backward's average rounds the first one's again.
        assert 2.0 ** -(digits + 4) < error <= 6 * 2.0**-digits, name
    with pytest.raises(stratagem.UsageError, match="choose ddp, ddp_fp16 or ddp_bf16"):
        stepped(tmp_path, ddp_comm_hook="powersgd")
