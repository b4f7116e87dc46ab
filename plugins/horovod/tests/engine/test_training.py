"""It trains as Horovod by hand: the same collectives give the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from stratagem_horovod import HorovodStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import stratagem
from stratagem.errors import WorkerError

STEPS, ACCUMULATE = 6, 2


def launched(function: Callable[..., Any], *args: Any, devices: int = 2, **options: Any) -> Any:
    """Return what rank 0 returns of `function(runtime, *args)`."""
    strategy = HorovodStrategy(**{"start_method": "fork", "timeout_s": 60, "scale_lr": False, **options})
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices, check_replicas_every=0)
    return runtime.launch(function, *args, quiet=True)


def hvd() -> Any:
    import horovod.torch

    return horovod.torch


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))


def sgd(module: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)


def batches(count: int = STEPS * ACCUMULATE) -> list[tuple[Tensor, Tensor]]:
    """Others on each rank."""
    generator = torch.Generator().manual_seed(100 + hvd().rank())
    return [
        (torch.randn(4, 12, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(count)
    ]


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def by_hand(lr: float, fp16: bool, max_norm: float | None) -> Tensor:
    """As Horovod's own examples."""
    module = net()
    optimizer = hvd().DistributedOptimizer(
        sgd(module, lr),
        named_parameters=module.named_parameters(),
        compression=hvd().Compression.fp16 if fp16 else hvd().Compression.none,
        backward_passes_per_step=ACCUMULATE,
    )
    hvd().broadcast_parameters(module.state_dict(), root_rank=0)
    for index, (x, y) in enumerate(batches()):
        (F.cross_entropy(module(x), y) / ACCUMULATE).backward()
        if index % ACCUMULATE == ACCUMULATE - 1:
            optimizer.synchronize()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_norm)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
    return flat(module)


def ours(runtime: Any, max_norm: float | None) -> Tensor:
    # Each rank begins with weights of its own.
    plain = net(hvd().rank())
    module, optimizer = runtime.setup(plain, sgd(plain))
    for index, (x, y) in enumerate(batches()):
        is_last = index % ACCUMULATE == ACCUMULATE - 1
        with nullcontext() if is_last else runtime.no_sync(module):
            runtime.backward(F.cross_entropy(module(x), y) / ACCUMULATE, module)
        if is_last:
            if max_norm is not None:
                runtime.clip(optimizer, max_norm=max_norm)
            optimizer.step()
            optimizer.zero_grad()
    return flat(plain)


def compared(runtime: Any, lr: float, fp16: bool, max_norm: float | None) -> list[tuple[float, float]]:
    """How far all ranks are from Horovod by hand, and that from where it began."""
    hand = by_hand(lr, fp16, max_norm)
    difference = float((ours(runtime, max_norm) - hand).abs().max())
    found: list[tuple[float, float]] = runtime.collectives.gather_objects(
        (difference, float((hand - flat(net())).abs().max()))
    )
    return found


@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("devices", [2, 4])
def test_the_numbers_are_those_of_distributed_optimizer(
    devices: int, fp16: bool, max_norm: float | None
) -> None:
    compression = "fp16" if fp16 else None
    for difference, effect in launched(
        compared, 0.1, fp16, max_norm, devices=devices, compression=compression
    ):
        # Of more than two, the order of a sum depends on what Horovod sends together.
        exact = devices == 2 and not max_norm
        assert difference <= (0.0 if exact else 2e-4 if fp16 else 1e-7)
        assert effect > 1e-2


def test_learning_rates_are_scaled_by_the_number_of_workers() -> None:
    for difference, _ in launched(compared, 0.2, False, None, scale_lr=True):
        assert difference == 0.0


def continued(runtime: Any) -> tuple[bool, bool]:
    """Whether states and settings of an optimizer that has made steps are rank 0's everywhere."""
    plain = net()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.1 + hvd().rank())
    for parameter in plain.parameters():
        parameter.grad = torch.full_like(parameter, 1.0 + hvd().rank())
    optimizer.step()
    optimizer.zero_grad()
    runtime.setup(plain, optimizer)
    own = [state["exp_avg"].sum().item() for state in optimizer.state.values()]
    everyone = runtime.collectives.gather_objects((own, optimizer.param_groups[0]["lr"]))
    return everyone[0] == everyone[1], everyone[0][1] == 0.1


def test_optimizer_states_are_those_of_rank_0() -> None:
    assert launched(continued) == (True, True)


def steps_unequally(runtime: Any) -> tuple[float, bool]:
    count = 3 + 4 * hvd().rank()
    plain = net()
    hand_optimizer = hvd().DistributedOptimizer(sgd(plain), named_parameters=plain.named_parameters())
    for x, y in batches(count):
        F.cross_entropy(plain(x), y).backward()
        hand_optimizer.step()
        hand_optimizer.zero_grad()
    hvd().join()
    hand = hvd().broadcast(flat(plain), 1, name="by hand")  # a name by itself counts calls
    plain = net()
    module, optimizer = runtime.setup(plain, sgd(plain))
    with runtime.session.run.strategy.join():
        for x, y in batches(count):
            runtime.backward(F.cross_entropy(module(x), y), module)
            optimizer.step()
            optimizer.zero_grad()
    everyone = runtime.collectives.gather_objects(flat(plain))
    return float((everyone[1] - hand).abs().max()), torch.equal(everyone[0], everyone[1])


def test_a_rank_that_has_no_more_batches_takes_part_with_zeros() -> None:
    difference, equal = launched(steps_unequally)
    assert (difference, equal) == (0.0, True)


def joined(runtime: Any, buffers: bool) -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) if buffers else net()
    runtime.setup(plain, sgd(plain))
    with runtime.session.run.strategy.join():
        pass


def test_joining_with_buffers_is_refused() -> None:
    with pytest.raises(stratagem.ConfigError, match="not available for a module with buffers"):
        launched(joined, True)


class Kinds(nn.Module):
    """Parameters of dtypes that Horovod doesn't know, and one that only rank 0 uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.short = nn.Parameter(torch.randn(5, dtype=torch.bfloat16))
        self.complex = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.strided = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.seldom = nn.Parameter(torch.ones(2))
        self.never = nn.Parameter(torch.ones(2))

    def forward(self, factor: float) -> Tensor:
        total = self.short.float().sum() + self.complex.abs().sum() + self.strided.square().sum()
        return factor * (total + self.seldom.sum() if factor == 1 else total)


def gradients(runtime: Any) -> dict[str, Tensor | None]:
    plain = Kinds()
    module, optimizer = runtime.setup(plain, sgd(plain))
    module(1.0 + hvd().rank()).backward()  # called by the loop itself: averaged when it is read
    runtime.clip(optimizer, max_norm=1e9)
    return {name: parameter.grad for name, parameter in plain.named_parameters()}


def test_gradients_of_every_dtype_are_averaged() -> None:
    found = launched(gradients)
    alone = Kinds()
    (alone(1.0) / 2 + alone(2.0) / 2).backward()
    assert found.pop("never") is None
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, getattr(alone, name).grad)


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


def recomputes(runtime: Any) -> None:
    plain = Reentrant()
    module, _ = runtime.setup(plain, sgd(plain))
    runtime.backward(module(torch.ones(2, 4, requires_grad=True)).sum(), module)


def test_a_gradient_that_comes_twice_is_refused() -> None:
    with pytest.raises(stratagem.ConfigError, match=r"'layer\.(weight|bias)' was computed twice"):
        launched(recomputes)


def ends_early(runtime: Any) -> None:
    plain = net()
    module, optimizer = runtime.setup(plain, sgd(plain))
    for x, y in batches():
        if runtime.rank == 1:
            raise ArithmeticError("the first batch is cursed")
        runtime.backward(F.cross_entropy(module(x), y), module)
        optimizer.step()


def test_a_rank_that_ends_is_reported_and_leaves_no_rank_waiting() -> None:
    with pytest.raises(WorkerError, match="the first batch is cursed"):
        launched(ends_early)


def comes_late(runtime: Any) -> None:
    plain = net()
    module, _ = runtime.setup(plain, sgd(plain))
    x, y = batches(1)[0]
    if runtime.rank == 0:
        runtime.backward(F.cross_entropy(module(x), y), module)
    else:
        time.sleep(20)


def test_a_rank_that_never_comes_is_waited_for_until_the_timeout() -> None:
    with pytest.raises(
        WorkerError, match="while Horovod averaged gradients: another rank has ended, or didn't"
    ):
        launched(comes_late, timeout_s=4)


def waits(runtime: Any) -> tuple[float, float]:
    """Return the seconds of CPU, and those of the clock, in which rank 0 waited for rank 1."""
    plain = net()
    module, _ = runtime.setup(plain, sgd(plain))
    ((x, _),) = batches(1)
    if hvd().rank() == 1:
        time.sleep(4.0)
    began = time.thread_time(), time.monotonic()
    runtime.backward(module(x).sum(), module)
    return time.thread_time() - began[0], time.monotonic() - began[1]


def test_who_waits_for_other_ranks_leaves_the_core_to_others() -> None:
    busy_s, waited_s = launched(waits)
    assert busy_s < 0.5 * waited_s


def test_the_plan_says_that_learning_rates_are_scaled() -> None:
    assert "times the number of workers" in HorovodStrategy().plan_lines()[0]
    assert not HorovodStrategy(scale_lr=False).plan_lines()
