"""The presets train as the same algorithms written by hand on plain torch, in 2 and 4 processes."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
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

import stratagem

STEPS = 14
POWER = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 3}
LOCAL = {"start_localSGD_iter": 4}


def launched(function: Callable[..., Any], devices: int, *args: Any, **options: Any) -> Any:
    """Return what rank 0 returns of `function(runtime, *args)`."""
    strategy = DDPStrategy(start_method="fork", timeout_s=60, **options)
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
    def hook(state, bucket):  # type: ignore[no-untyped-def]
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


def drift(runtime: Any) -> list[float]:
    """After each step, how far parameters of rank 0 and of the others are apart."""
    plain = net()
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ddp_comm_hook": "fp8"}, "'fp8' is none of fp16, bf16, powersgd, post_local_sgd"),
        ({"ddp_comm_hook": "fp16", "ddp_comm_state": {"rank": 1}}, "'rank', and ddp_comm_hook='fp16' has no"),
        ({"ddp_comm_hook": "powersgd", "ddp_comm_state": {"start_powerSGD_iter": 1}}, "from 2 on"),
        ({"ddp_comm_hook": "powersgd", "ddp_comm_state": {"matrix_approximation_rank": 0}}, "from 1 on"),
        ({"ddp_comm_hook": "powersgd", "ddp_comm_state": 3}, "takes its settings by name"),
        ({"ddp_comm_hook": "powersgd", "find_unused_parameters": True}, "aborts the process"),
        ({"ddp_comm_hook": "post_local_sgd"}, "give model_averaging_period or period_group_size"),
        ({"period_group_size": {4: 2, 2: 4}}, "makes no hierarchy"),
        ({"period_group_size": {2: 2, 4: 3}}, "makes no hierarchy"),
        ({"period_group_size": {}}, "makes no hierarchy"),
        ({"period_group_size": "often"}, 'neither "auto" nor'),
        ({"period_group_size": "auto", "model_averaging_period": 2}, "give one of them"),
    ],
)
def test_what_cant_be_is_refused_by_the_constructor(options: dict[str, Any], words: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=words):
        DDPStrategy(**options)


def set_up(runtime: Any, make: Callable[[nn.Module], Any]) -> None:
    plain = net()
    if make is scalar:
        plain.scale = nn.Parameter(torch.ones(()))
    runtime.setup(plain, optimizer_of(plain) if make is scalar else make(plain))


def scalar(module: nn.Module) -> None:
    """Stands for a module with a parameter that has no dimension."""


def lbfgs(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(module.parameters())


def zero(module: nn.Module) -> torch.optim.Optimizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)


LOCAL_SGD = {"ddp_comm_hook": "post_local_sgd", "model_averaging_period": 2}


@pytest.mark.parametrize(
    ("options", "make", "words"),
    [
        (
            {"period_group_size": {2: 3, 4: 6}},
            optimizer_of,
            "groups of 3 ranks, which don't divide the 2 ranks",
        ),
        ({"period_group_size": {2: 1}}, optimizer_of, "the last group size of period_group_size is 1"),
        (
            {**LOCAL_SGD, "ddp_comm_state": {"subgroup_size": 3}},
            optimizer_of,
            "subgroup_size=3 doesn't divide",
        ),
        (LOCAL_SGD, lbfgs, "LBFGS needs all ranks in one step"),
        (LOCAL_SGD, zero, "ZeroRedundancyOptimizer needs all ranks in one step"),
        ({"ddp_comm_hook": "powersgd"}, scalar, "parameter 'scale' has no dimension"),
    ],
)
def test_what_cant_be_here_is_refused_before_training(
    options: dict[str, Any], make: Callable[[nn.Module], Any], words: str
) -> None:
    with pytest.raises(stratagem.ConfigError, match=words):
        launched(set_up, 2, make, **options)


@pytest.mark.parametrize("preset", ["ddp_powersgd", "ddp_post_local_sgd"])
def test_loss_scaling_is_refused_where_ranks_or_memory_would_break(preset: str) -> None:
    runtime = stratagem.Runtime(
        strategy=preset,
        strategy_options={"start_method": "fork"},
        accelerator="cpu",
        devices=2,
        precision="16-mixed",
    )
    with pytest.raises(stratagem.ConfigError, match="choose bf16-mixed or 32-true"):
        runtime.launch(set_up, optimizer_of, quiet=True)
