"""Training loops that take gradients and steps into their own hands, each also run in plain PyTorch by one process.

Every loop is called with a runtime and with a stand-in that does what a plain loop does; the plain one sees the
batches of all ranks as one. Ranks have unequal data, always.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem

ROWS = 4
Loop = Callable[["Hands"], nn.Module]


class Hands:
    """What a loop is given: the runtime's methods, and batches."""

    def __init__(self, runtime: Any, ranks: int, scalar: bool) -> None:
        self.runtime, self.ranks, self.scalar = runtime, ranks, scalar
        self.said: list[float] = []
        """What a loop noted of values that must be a plain loop's."""

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """Return this rank's batch; the plain loop's is all ranks'."""
        own = [_rows(index, rank) for rank in range(self.ranks)]
        if self.runtime is not None:
            return own[self.runtime.session.collectives.data.rank]
        x, y = zip(*own)
        return torch.cat(x), torch.cat(y)

    def setup(self, module: nn.Module, *optimizers: Any) -> Any:
        if self.runtime is not None:
            return self.runtime.setup(module, *optimizers)
        return (module, *optimizers) if optimizers else module

    def backward(self, loss: Tensor, module: nn.Module) -> None:
        loss.backward() if self.runtime is None else self.runtime.backward(loss, module)  # type: ignore[no-untyped-call]

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        return nullcontext() if self.runtime is None else self.runtime.no_sync(module)

    def average(self, optimizer: Any) -> None:
        if self.runtime is not None:
            self.runtime.average_gradients(optimizer)

    def clip(self, optimizer: Any, max_norm: float) -> None:
        if self.runtime is not None:
            self.runtime.clip(optimizer, max_norm=max_norm)
        else:
            nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], max_norm)


def _rows(index: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * index + rank)
    x = torch.randn(ROWS, 6, generator=generator) * (1 + rank)
    return x, torch.randint(4, (ROWS,), generator=generator)


class Net(nn.Module):
    """Blocks that are sharded by themselves, a layer of the outermost unit, and a parameter with or without dims."""

    def __init__(self, scalar: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.tensor(1.5) if scalar else torch.full((1,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x) * self.scale


def sgd(net: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)


def loss_of(module: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(module(batch[0]), batch[1])


def values(module: nn.Module) -> dict[str, Tensor]:
    """Return the whole parameters and buffers by name. Collective."""
    found = {}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        whole: Any = value.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        found[name] = torch.Tensor(whole.detach().cpu().clone())
    return found


Boom = KeyError
"""What loops raise, and catch: nothing that a strategy raises itself."""


def raw_backward(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        loss_of(module, hands.batch(index)).backward()  # type: ignore[no-untyped-call]
        hands.clip(optimizer, 0.1)
        optimizer.step()
    return net


def original_called(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    _, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        loss_of(net, hands.batch(index)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net


def backward_twice(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        loss = loss_of(module, hands.batch(index))
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        (2 * loss).backward()
        optimizer.step()
    return net


def two_forwards(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        first, second = loss_of(module, hands.batch(index)), loss_of(module, hands.batch(index + 9))
        first.backward()  # type: ignore[no-untyped-call]
        hands.backward(second, module)
        optimizer.step()
    return net


def stepped_within_no_sync(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        with hands.no_sync(module):
            hands.backward(loss_of(module, hands.batch(index)), module)
            optimizer.step()
    return net


def stepped_after_no_sync(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        with hands.no_sync(module):
            hands.backward(loss_of(module, hands.batch(index)), module)
        hands.clip(optimizer, 0.1)
        optimizer.step()
    return net


def dropped_within_a_window(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(4):
        with hands.no_sync(module):
            hands.backward(loss_of(module, hands.batch(index)), module)
        module.zero_grad() if index % 2 else optimizer.zero_grad()
        hands.backward(loss_of(module, hands.batch(index + 9)), module)
        optimizer.step()
        optimizer.zero_grad()
    return net


def assigned(hands: Hands, average: bool = False) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        loss = loss_of(module, hands.batch(index))
        parameters = list(net.head.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            parameter.grad = gradient
        if average:
            hands.average(optimizer)
        optimizer.step()
    return net


def assigned_and_averaged(hands: Hands) -> nn.Module:
    return assigned(hands, average=True)


def head_added(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        if index == 1:
            added = nn.Linear(4, 4)
            net.head = nn.Sequential(net.head, added)  # type: ignore[assignment]
            optimizer.add_param_group({"params": list(added.parameters())})
        optimizer.zero_grad()
        hands.backward(loss_of(module, hands.batch(index)), module)
        optimizer.step()
    return net


def head_replaced(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        if index == 1:
            torch.manual_seed(5)
            net.head = nn.Linear(6, 4)
        optimizer.zero_grad()
        hands.backward(loss_of(module, hands.batch(index)), module)
        optimizer.step()
    return net


def no_elements(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    net.nothing = nn.Parameter(torch.zeros(0, 3))
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        hands.backward(loss_of(module, hands.batch(index)) + net.nothing.sum(), module)
        hands.clip(optimizer, 0.1)
        optimizer.step()
    return net


def functional(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(2):
        optimizer.zero_grad()
        x, y = hands.batch(index)
        fast = {name: value * 0.9 for name, value in net.named_parameters()}
        hands.backward(F.cross_entropy(torch.func.functional_call(net, fast, (x,)), y), module)
        optimizer.step()
    return net


def with_closure(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    for index in range(3):

        def closure(index: int = index) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(module, hands.batch(index))
            loss.backward() if index == 1 else hands.backward(loss, module)  # type: ignore[no-untyped-call]
            hands.clip(optimizer, 0.1)
            return loss

        hands.said.append(float(torch.as_tensor(optimizer.step(closure)).detach()))
    return net


class Ascending(torch.optim.SGD):
    """As SAM does: the gradients of a second place, with a step to it and back."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        evaluate = torch.enable_grad()(closure)
        loss = evaluate()
        with torch.no_grad():
            self._ascend(0.05)
        evaluate()
        with torch.no_grad():
            self._ascend(-1.0)
        super().step()
        return loss

    def _ascend(self, factor: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if factor > 0:
                    self.state[parameter]["ascent"] = factor * parameter.grad.sign()
                    parameter.add_(self.state[parameter]["ascent"])
                else:
                    parameter.sub_(self.state[parameter]["ascent"])


def ascending(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, Ascending(net.parameters(), lr=0.1, momentum=0.9))
    for index in range(3):

        def closure(index: int = index) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(module, hands.batch(index))
            hands.backward(loss, module)
            return loss

        hands.said.append(float(torch.as_tensor(optimizer.step(closure)).detach()))
    return net


def step_hooks(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    shapes = [value.shape for value in net.parameters()]
    calls: list[str] = []

    def seen(optimizer: Any) -> list[Any]:
        parameters = [value for group in optimizer.param_groups for value in group["params"]]
        assert [value.shape for value in parameters] == shapes
        return parameters

    def before(optimizer: Any, *_: Any) -> None:
        calls.append("before")
        for parameter in seen(optimizer):
            parameter.grad.mul_(0.5)

    @torch.no_grad()
    def after(optimizer: Any, *_: Any) -> None:
        calls.append("after")
        for parameter in seen(optimizer):
            if parameter in optimizer.state:  # ranks may share out the states
                assert optimizer.state[parameter]["momentum_buffer"].shape == parameter.shape
            parameter.mul_(0.9)

    given = sgd(net)
    given.register_step_pre_hook(before)
    given.register_step_post_hook(after)
    module, optimizer = hands.setup(net, given)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    for index in range(3):
        optimizer.zero_grad()
        hands.backward(loss_of(module, hands.batch(index)), module)
        optimizer.step()
    hands.said.append(len(calls))
    return net


def state_dict(hands: Hands) -> nn.Module:
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    for index in range(3):
        optimizer.zero_grad()
        hands.backward(loss_of(module, hands.batch(index)), module)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return net


def caught(hands: Hands, where: str, dropped: bool = True) -> nn.Module:
    """An exception in the second step, which the loop leaves out."""
    net = Net(hands.scalar)
    module, optimizer = hands.setup(net, sgd(net))
    now = [0]

    def fail(at: str) -> None:
        if at == where and now[0] == 1:
            raise Boom(at)

    net.blocks[1].register_forward_pre_hook(lambda *_: fail("forward"))
    net.blocks[0].register_forward_hook(
        lambda module, args, output: _Raising.apply(output, lambda: fail("backward"))
    )
    optimizer.register_step_pre_hook(lambda *_: fail("step"))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module, hands.batch(now[0]))
        hands.backward(loss, module)
        fail("closure")
        return loss

    for index in range(4):
        now[0] = index
        try:
            if where == "closure":
                optimizer.step(closure)
                continue
            if dropped or not index:
                optimizer.zero_grad()
            loss = loss_of(module, hands.batch(index))
            loss.backward() if where == "raw" else hands.backward(loss, module)  # type: ignore[no-untyped-call]
            optimizer.step()
        except Boom:
            continue
    return net


def caught_in_forward(hands: Hands) -> nn.Module:
    return caught(hands, "forward")


def caught_in_backward(hands: Hands) -> nn.Module:
    return caught(hands, "backward")


def caught_in_step(hands: Hands) -> nn.Module:
    return caught(hands, "step")


def caught_in_closure(hands: Hands) -> nn.Module:
    return caught(hands, "closure")


def caught_and_stepped(hands: Hands) -> nn.Module:
    return caught(hands, "backward", dropped=False)


class _Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, fail: Callable[[], None]) -> Tensor:
        ctx.fail = fail
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        ctx.fail()
        return gradient, None


LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        raw_backward,
        original_called,
        backward_twice,
        two_forwards,
        stepped_within_no_sync,
        stepped_after_no_sync,
        dropped_within_a_window,
        assigned,
        assigned_and_averaged,
        head_added,
        head_replaced,
        no_elements,
        functional,
        with_closure,
        ascending,
        step_hooks,
        state_dict,
        caught_in_forward,
        caught_in_backward,
        caught_in_step,
        caught_in_closure,
        caught_and_stepped,
    )
}


def differences(runtime: Any, scalar: bool, names: Iterable[str]) -> dict[str, str]:
    """Return `difference` of loops, one after the other in one run; the work of a rank."""
    torch.set_num_threads(1)
    found = {name: difference(LOOPS[name], runtime, scalar) for name in names}
    everyone = runtime.session.collectives.gather_objects(found)
    # One rank's error is enough, and each rank's difference counts.
    return {name: next((each[name] for each in everyone if each[name]), "") for name in names}


def check_all(
    strategy: Any,
    ranks: int,
    refused: Mapping[str, str],
    *,
    scalar: bool,
    names: Iterable[str] = LOOPS,
) -> None:
    """Run every loop on `ranks` ranks: each is equal to the plain one, or refused with the sentence in `refused`.

    Args:
        strategy: a name or an object.
        ranks: how many processes to start.
        refused: name of a loop → an expression that finds its error.
        scalar: whether one parameter has no dimensions.
        names: of loops, where not all are run.
    """
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=ranks)
    found = runtime.launch(differences, scalar, list(names), quiet=True)
    wrong = {name: said for name, said in found.items() if not re.search(refused.get(name, "^$"), said)}
    assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong.items())


def difference(loop: Loop, runtime: Any, scalar: bool) -> str:
    """Return how a loop on this runtime differs from the plain one: "" for not at all, or the error it ended in."""
    ranks = runtime.session.collectives.data.world_size  # that have different batches
    plain = Hands(None, ranks, scalar)
    expected = values(loop(plain))
    ours = Hands(runtime, ranks, scalar)
    try:
        found = values(loop(ours))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if expected.keys() != found.keys():
        return f"other names: {sorted(expected.keys() ^ found.keys())}"
    for name, value in expected.items():
        if not torch.allclose(found[name], value, atol=2e-6, rtol=1e-5):
            return f"WRONG {name} by {float((found[name] - value).abs().max()):.2g}"
    if len(plain.said) != len(ours.said):
        return f"WRONG notes: {plain.said} {ours.said}"
    for mine, theirs in zip(ours.said, plain.said):
        if abs(mine - theirs) > 1e-4:
            return f"WRONG notes: {ours.said} for {plain.said}"
    return ""
