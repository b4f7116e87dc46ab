"""fairscale_sharded beside FairScale by hand, and beside plain PyTorch in one process."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import stratagem
from stratagem import ConfigError

pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")

from fairscale.nn import ShardedDataParallel
from fairscale.optim import OSS
from stratagem_sharding.held_gradient import HeldGradient

BUCKETS = 2**23
LR = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
Loop = Callable[..., Any]


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step: int, rank: int = 0, ranks: int = 1) -> Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(step))[rank::ranks]


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def on_two(function: Loop, *args: Any, strategy: str = "fairscale_sharded", **options: Any) -> Any:
    runtime = stratagem.Runtime(
        strategy=strategy,
        accelerator="cpu",
        devices=1 if strategy == "single" else 2,
        strategy_options={} if strategy == "single" else {"start_method": "fork", **options},
    )
    return runtime.launch(function, *args, quiet=True)


# By hand ------------------------------------------------------------------------------------------------


def by_hand(runtime: Any, buffer_size: int, clip: float | None) -> list[Tensor]:
    """A loop as FairScale's documentation has it, with `zero_grad` as torch has it."""
    module = net()
    optimizer = OSS(module.parameters(), optim=torch.optim.SGD, **LR)
    model = ShardedDataParallel(module, optimizer, reduce_buffer_size=buffer_size)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step, dist.get_rank(), 2)).square().mean().backward()
        if clip is not None:
            optimizer.clip_grad_norm(clip)
        optimizer.step()
    return weights(module)


def by_runtime(runtime: Any, clip: float | None) -> list[Tensor]:
    module = net()
    model, optimizer = runtime.setup(module, torch.optim.SGD(module.parameters(), **LR))
    for step in range(4):
        optimizer.zero_grad()
        runtime.backward(model(batch(step, runtime.rank, runtime.world_size)).square().mean())
        if clip is not None:
            runtime.clip(optimizer, max_norm=clip)
        optimizer.step()
    return weights(module)


@pytest.mark.parametrize("clip", [None, 0.02])
def test_the_numbers_are_those_by_hand_and_of_plain_pytorch(clip: float | None) -> None:
    ours = on_two(by_runtime, clip, reduce_buffer_size=0)
    torch.testing.assert_close(ours, on_two(by_hand, 0, clip, strategy="ddp"), atol=1e-7, rtol=0)
    torch.testing.assert_close(ours, on_two(by_runtime, clip, strategy="single"), atol=1e-6, rtol=0)


def test_zero_grad_makes_no_bucket_stale() -> None:
    plain = on_two(by_runtime, None, strategy="single")
    theirs = on_two(by_hand, BUCKETS, None, strategy="ddp")
    # Not of ours: FairScale sends what its buckets have of the steps before. Where that holds no more, tell so.
    assert max((a - b).abs().max().item() for a, b in zip(theirs, plain)) > 1e-3
    ours = on_two(by_runtime, None)
    torch.testing.assert_close(ours, plain, atol=1e-6, rtol=0)


def test_gradients_as_float16() -> None:
    plain, ours = on_two(by_runtime, None, strategy="single"), on_two(by_runtime, None, reduce_fp16=True)
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=0)
    assert not all(map(torch.equal, ours, plain))


# What FairScale by itself gets wrong --------------------------------------------------------------------


def unlike_ranks(runtime: Any) -> list[Tensor]:
    """Each rank uses other layers, of equal shapes; one is used by none."""
    torch.manual_seed(1)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    model, optimizer = runtime.setup(layers_of(layers), torch.optim.SGD(layers.parameters(), **LR))
    for step in range(3):
        optimizer.zero_grad()
        used = [runtime.rank] if runtime.world_size == 2 else [0, 1]
        runtime.backward(model(batch(step), used) / len(used))
        optimizer.step()
    return weights(layers)


class Chosen(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, used: Sequence[int]) -> Tensor:
        return torch.stack([self.layers[index](x).square().mean() for index in used]).sum()


def layers_of(layers: nn.ModuleList) -> Chosen:
    return Chosen(layers)


@pytest.mark.parametrize("buffer_size", [0, BUCKETS])
def test_ranks_that_use_different_layers(buffer_size: int) -> None:
    plain = on_two(unlike_ranks, strategy="single")
    torch.testing.assert_close(on_two(unlike_ranks, reduce_buffer_size=buffer_size), plain, atol=1e-6, rtol=0)


class OfThreeKinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.linear32, self.linear64 = nn.Linear(8, 8), nn.Linear(8, 8).double()
        self.spectrum = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))
        self.channels = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear32(x)
        image = self.channels(x[:, None, :, None].expand(-1, 2, -1, 4))
        return (
            self.linear64(x.double()).mean()
            + (x.to(torch.complex64) @ self.spectrum).abs().mean()
            + image.mean()
        )


def of_three_kinds(runtime: Any) -> list[Tensor]:
    module = OfThreeKinds()
    real = [*module.linear32.parameters(), *module.channels.parameters()]
    groups = (real, [*module.linear64.parameters()], [module.spectrum])
    model, *optimizers = runtime.setup(module, *(torch.optim.SGD(group, **LR) for group in groups))
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        runtime.backward(model(batch(step, runtime.rank, runtime.world_size)))
        for optimizer in optimizers:
            runtime.clip(optimizer, max_norm=0.1)
            optimizer.step()
    return weights(module)


def test_dtypes_and_memory_formats() -> None:
    plain = on_two(of_three_kinds, strategy="single")
    torch.testing.assert_close(on_two(of_three_kinds), plain, atol=1e-6, rtol=0)


def in_many_ways(runtime: Any, way: str) -> list[Tensor]:
    module = net()
    if way == "grown":
        module[0].requires_grad_(False)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    model, optimizer = runtime.setup(module, torch.optim.SGD(trained, **LR))
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if way == "grown" and step == 2:
            module[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(module[0].parameters())})
        if way == "other data" and step == 2:
            for parameter in module.parameters():
                parameter.data = parameter.data * 0.5
        halves = [batch(10 * step + half, runtime.rank, runtime.world_size) for half in range(2)]
        if way == "frozen in a window":
            with runtime.no_sync():
                runtime.backward(model(halves[0]).square().mean())
            module[2].requires_grad_(False)
        elif way != "other data":
            runtime.backward(model(halves[0]).square().mean())
        if way == "three backwards":
            with runtime.no_sync():
                runtime.backward(model(halves[1]).square().mean())
        loss = model(halves[1]).square().mean()
        loss.backward() if way == "plain backward" else runtime.backward(loss)
        if way != "three backwards":
            runtime.clip(optimizer, max_norm=0.05)
        optimizer.step()
        module[2].requires_grad_(True)
    return weights(module)


@pytest.mark.parametrize(
    "way",
    ["two backwards", "three backwards", "plain backward", "frozen in a window", "other data", "grown"],
)
def test_own_loops(way: str) -> None:
    plain = on_two(in_many_ways, way, strategy="single")
    for buffer_size in (0, BUCKETS):
        ours = on_two(in_many_ways, way, reduce_buffer_size=buffer_size)
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=0)


def kept(runtime: Any) -> Any:
    module = net()
    model, optimizer = runtime.setup(module, torch.optim.Adam(module.parameters()))
    runtime.backward(model(batch(0)).square().mean())
    gradients = sum(p.grad.numel() for p in module.parameters() if not isinstance(p.grad, HeldGradient))
    optimizer.step()
    (prepared,) = runtime._prepared
    moments = sum(v.numel() for name, v in prepared.optimizer_tensors().items() if name.endswith("exp_avg"))
    return runtime.collectives.gather_objects((gradients, moments))


def test_each_rank_keeps_gradients_and_states_of_its_own_parameters() -> None:
    (first, second), total = on_two(kept), sum(parameter.numel() for parameter in net().parameters())
    assert (first[0], second[0]) == (first[1], second[1])
    assert first[0] + second[0] == total
    assert max(first[0], second[0]) < 0.7 * total


def left_apart(runtime: Any) -> bool:
    by_runtime(runtime, None)
    parameters = [*runtime._prepared[0].original_module.parameters()]
    runtime.close()
    return len({parameter.untyped_storage().data_ptr() for parameter in parameters}) == len(parameters)


def test_parameters_have_memory_of_their_own_afterwards() -> None:
    assert on_two(left_apart)


def growing(runtime: Any) -> None:
    module, other = net(), nn.Parameter(torch.ones(2, dtype=torch.float64))
    model, optimizer = runtime.setup(module, torch.optim.SGD(module.parameters(), **LR))
    optimizer.add_param_group({"params": [other]})
    model(batch(0))


def test_a_group_of_another_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parameter of torch\.float64 was added to SGD"):
        on_two(growing)


def fairscale_calls(runtime: Any) -> int:
    """How often a backward calls what FairScale has for each gradient that it sends."""
    module = net()
    model, _ = runtime.setup(module, torch.optim.SGD(module.parameters(), **LR))
    loss = model(batch(0)).square().mean()
    source = inspect.getsourcefile(ShardedDataParallel)
    calls = 0

    def count(frame: Any, event: str, arg: object) -> None:
        nonlocal calls
        code = frame.f_code
        calls += event == "call" and code.co_name == "reduce" and code.co_filename == source

    sys.setprofile(count)
    try:
        runtime.backward(loss)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("buffer_size", "expected"), [(BUCKETS, 2), (0, 6)])
def test_a_bucket_is_sent_at_once(buffer_size: int, expected: int) -> None:
    assert on_two(fairscale_calls, reduce_buffer_size=buffer_size) == expected
