"""Training loops that take gradients into their own hands, each written once for one process and for several ranks.

Ranks have different samples of each global batch; a loop that is right ends with the parameters that one process has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from stratagem import Module, Trainer
from stratagem.errors import StratagemError

STEPS = 6
Loop = Callable[["Hands"], nn.Module]


class Hands:
    """What a loop calls: the runtime's, or in one process nothing but torch."""

    def __init__(self, runtime: Any = None) -> None:
        self.runtime = runtime
        self.module: Any = None
        self.rank, self.world_size = (runtime.rank, runtime.world_size) if runtime else (0, 1)

    def setup(self, module: nn.Module, *optimizers: Any, **kwargs: Any) -> Any:
        made: Any = (module, *optimizers) if optimizers else module
        if self.runtime:
            made = self.runtime.setup(module, *optimizers, **kwargs)
        self.module = made[0] if optimizers else made
        return made

    def backward(self, loss: torch.Tensor, module: Any = None, **kwargs: Any) -> None:
        if self.runtime and not kwargs:
            self.runtime.backward(loss, module or self.module)
        else:
            loss.backward(**kwargs)

    def no_sync(self, module: Any = None) -> AbstractContextManager[Any]:
        return self.runtime.no_sync(module) if self.runtime else nullcontext()

    def average_gradients(self, optimizer: Any) -> None:
        if self.runtime:
            self.runtime.average_gradients(optimizer)

    def batch(self, step: int, view: int = 0) -> torch.Tensor:
        """This rank's samples of a global batch; other ranks have others, of another size."""
        generator = torch.Generator().manual_seed(1000 * view + step)
        whole = torch.randn(6, 4, generator=generator, dtype=torch.float64) * torch.arange(1, 7)[:, None]
        return whole[self.rank :: self.world_size]


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return (output - torch.tensor([1.0, -2.0], dtype=output.dtype)).square().mean()


LOOPS: dict[str, Loop] = {}
REFUSED: dict[str, str] = {}
"""Loop → what the sentence says, where several ranks refuse it."""


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


def refused(said: str) -> Callable[[Loop], Loop]:
    def note(function: Loop) -> Loop:
        REFUSED[function.__name__] = said
        return loop(function)

    return note


@loop
def raw_backward(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(module(hands.batch(step))).backward()
        optimizer.step()
    return model


@loop
def the_module_that_setup_was_given(hands: Hands) -> nn.Module:
    model = net()
    _, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(STEPS):
        optimizer.zero_grad()
        hands.backward(loss_of(model(hands.batch(step))))
        optimizer.step()
    return model


@loop
def two_views_two_backwards(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        one, other = module(hands.batch(step)), module(hands.batch(step, view=1))
        hands.backward(loss_of(one))
        hands.backward(loss_of(other))
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop
def two_views_one_loss(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        one, other = module(hands.batch(step)), module(hands.batch(step, view=1))
        hands.backward(loss_of(one) - (one * other.detach()).mean() + loss_of(other))
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop
def a_second_backward_of_one_graph(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        loss = loss_of(module(hands.batch(step)))
        loss.backward(retain_graph=True)
        (0.5 * loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop
def the_last_window_within_no_sync(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        for part in range(2):
            with hands.no_sync(module):
                hands.backward(loss_of(module(hands.batch(step, view=part))) / 2)
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop
def leftovers_before_a_synchronized_micro_batch(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        with hands.no_sync(module):
            hands.backward(loss_of(module(hands.batch(step, view=1))))
        hands.backward(loss_of(module(hands.batch(step))))
        with hands.no_sync(module):
            hands.backward(loss_of(module(hands.batch(step, view=2))))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return model


@loop
def an_optimizer_made_after_setup(hands: Hands) -> nn.Module:
    model = net()
    module = hands.setup(model)
    optimizer = Adam(module.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        hands.backward(loss_of(module(hands.batch(step))))
        optimizer.step()
    return model


@loop
def the_optimizer_that_setup_was_given(hands: Hands) -> nn.Module:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    module, _ = hands.setup(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        with hands.no_sync(module):
            hands.backward(loss_of(module(hands.batch(step))))
        optimizer.step()
    return model


@loop
def closures_of_sgd_and_adam(hands: Hands) -> nn.Module:
    model = net()
    module, first, second = hands.setup(
        model, SGD(model[0].parameters(), lr=0.1), Adam(model[2].parameters(), lr=0.1)
    )
    losses = []
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            first.zero_grad()
            second.zero_grad()
            loss = loss_of(module(hands.batch(step)))
            hands.backward(loss)
            return loss

        losses += [first.step(closure), second.step(closure)]
    model.register_buffer("losses", torch.stack([each.detach() for each in losses]))
    return model


@loop
def gradients_of_autograd_that_are_averaged(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        loss = loss_of(module(hands.batch(step)))
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters()))
        ):
            parameter.grad = gradient
        hands.average_gradients(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return model


@refused(r"the gradient of '0.weight' was assigned by your code and differs between ranks")
def gradients_of_autograd(hands: Hands) -> nn.Module:
    """PCGrad: conflicting parts of two losses' gradients are projected away, which no average of ranks is."""
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        output = module(hands.batch(step))
        losses = (loss_of(output), output.square().mean())
        one, other = (
            torch.autograd.grad(each, list(model.parameters()), retain_graph=True) for each in losses
        )
        for parameter, a, b in zip(model.parameters(), one, other):
            dot = (a * b).sum().clamp(max=0)
            parameter.grad = a + b - dot * a / a.square().sum()
        optimizer.step()
    return model


@refused(r"the gradient of '0.weight' was changed before it was averaged over the ranks")
def clipping_by_hand_within_no_sync(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        with hands.no_sync(module):
            hands.backward(loss_of(module(hands.batch(step))))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return model


@loop
def gradients_changed_and_replaced(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        hands.backward(loss_of(module(hands.batch(step))))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad - parameter.grad.mean()
            parameter.grad.mul_(1.5)
        if step == 3:
            model[0].bias.grad = None
        optimizer.step()
        optimizer.zero_grad()
    return model


@refused("was added after setup")
def a_head_that_is_replaced(hands: Hands) -> nn.Module:
    model = net()
    _, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    for step in range(STEPS):
        if step == 2:
            model[2] = nn.Linear(8, 2).double()
            optimizer.add_param_group({"params": list(model[2].parameters())})
        optimizer.zero_grad()
        hands.backward(loss_of(model(hands.batch(step))))
        optimizer.step()
    return model


@refused("steps within a backward")
def optimizers_in_the_backward(hands: Hands) -> nn.Module:
    model = net()
    module = hands.setup(model)
    optimizers = {parameter: SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step_one(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_one)
    for step in range(STEPS):
        hands.backward(loss_of(module(hands.batch(step))))
    return model


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise ArithmeticError("in the backward")


@loop
def an_exception_that_all_ranks_catch(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    fails_at = {1: "forward", 3: "backward"}

    def hook(layer: nn.Module, args: Any, output: torch.Tensor) -> Any:
        if fails_at.get(at) == "forward":
            raise ArithmeticError("in the forward")
        return _Raises.apply(output) if fails_at.get(at) == "backward" else None

    model[1].register_forward_hook(hook)
    for at in range(STEPS):
        optimizer.zero_grad()
        try:
            hands.backward(loss_of(module(hands.batch(at))))
        except ArithmeticError:
            continue
        optimizer.step()
    return model


@loop
def a_schedule_and_hooks_after_setup(hands: Hands) -> nn.Module:
    model = net()
    before, after = [], []
    given = SGD(model.parameters(), lr=0.2, momentum=0.9)
    given.register_step_pre_hook(lambda *_: before.append(model[0].weight.grad.abs().sum().item()))
    module, optimizer = hands.setup(model, given)
    optimizer.register_step_post_hook(lambda *_: after.append(model[0].weight.sum().item()))
    scheduler = StepLR(optimizer, 2, gamma=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        hands.backward(loss_of(module(hands.batch(step))))
        optimizer.step()
        scheduler.step()
    model.register_buffer("hooks", torch.tensor([*before, *after], dtype=torch.float64))
    return model


@loop
def norms_that_are_read_before_the_step(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    norms = []
    for step in range(STEPS):
        one, other = module(hands.batch(step)), module(hands.batch(step, view=1))
        hands.backward(loss_of(one))
        hands.backward(loss_of(other))
        norms.append(sum(p.grad.data.norm(2).item() ** 2 for p in model.parameters() if p.grad is not None))
        optimizer.step()
        optimizer.zero_grad()
    model.register_buffer("norms", torch.tensor(norms, dtype=torch.float64))
    return model


@loop
def averages_of_the_weights(hands: Hands) -> nn.Module:
    model = net()
    module, optimizer = hands.setup(model, SGD(model.parameters(), lr=0.1))
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in range(STEPS):
        optimizer.zero_grad()
        hands.backward(loss_of(module(hands.batch(step))))
        optimizer.step()
        average.update_parameters(module)
    return average


@loop
def a_generator_and_a_discriminator(hands: Hands) -> nn.Module:
    generator, discriminator = net(), nn.Linear(2, 1).double()
    nn.init.ones_(discriminator.weight)
    nn.init.zeros_(discriminator.bias)
    made, first = hands.setup(generator, Adam(generator.parameters(), lr=0.01))
    judged, second = hands.setup(discriminator, SGD(discriminator.parameters(), lr=0.1))
    for step in range(STEPS):
        fake = made(hands.batch(step))
        second.zero_grad()
        hands.backward(
            judged(fake.detach()).square().mean() - judged(hands.batch(step)[:, :2]).mean(), judged
        )
        second.step()
        first.zero_grad()
        hands.backward(-judged(fake).mean(), made)
        first.step()
    return nn.ModuleList([generator, discriminator])


@refused(r"'0.weight' of Sequential is a parameter of Sequential too")
def two_modules_that_share_a_trunk(hands: Hands) -> nn.Module:
    trunk = nn.Linear(4, 8).double()
    actor, critic = (nn.Sequential(trunk, nn.Linear(8, 2).double()) for _ in range(2))
    first, one = hands.setup(actor, SGD(actor.parameters(), lr=0.1))
    second, other = hands.setup(critic, SGD(critic.parameters(), lr=0.1))
    for step in range(STEPS):
        hands.backward(loss_of(first(hands.batch(step))) + loss_of(second(hands.batch(step))))
        one.step()
        other.step()
    return actor


def values_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.detach().clone() for name, value in (*module.named_parameters(), *module.named_buffers())
    }


def in_one_process(name: str) -> dict[str, torch.Tensor]:
    return values_of(LOOPS[name](Hands()))


def on_ranks(runtime: Any, loops: dict[str, Loop] | None = None) -> dict[str, dict[str, torch.Tensor] | str]:
    """Run loops under the runtime's strategy; return what rank 0 ends with, or the sentence of a refusal.

    Args:
        runtime: in a launch.
        loops: by names; every one when None.
    """
    found: dict[str, dict[str, torch.Tensor] | str] = {}
    for name, function in (LOOPS if loops is None else loops).items():
        try:
            found[name] = values_of(function(Hands(runtime)))
        except StratagemError as error:
            found[name] = f"{type(error).__name__}: {error}"
        except Exception as error:
            found[name] = f"an error that no sentence of Stratagem's: {type(error).__name__}: {error}"
    return found


class ByHand(Module):
    """Runs backwards and steps itself, in ways that the strategy doesn't see.

    Args:
        way: "raw", "closure", "two" or "assigned".
        batch_size: of one rank.
    """

    def __init__(self, way: str, batch_size: int) -> None:
        super().__init__()
        self.automatic_optimization, self.batch_size = False, batch_size
        self.way, self.net = way, net()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        (x,) = batch
        if self.way == "closure":
            optimizer.step(lambda: self._evaluate(optimizer, x))
            return
        optimizer.zero_grad()
        if self.way == "assigned":
            loss, parameters = loss_of(self.net(x)), list(self.net.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter.grad = gradient
        else:
            self._evaluate(optimizer, x)
            if self.way == "two":
                loss_of(self.net(-x)).backward()
        optimizer.step()

    def _evaluate(self, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        if self.way == "closure":
            optimizer.zero_grad()
        loss = loss_of(self.net(x))
        loss.backward()
        return loss

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.05, momentum=0.9)

    def train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        data = (
            torch.randn(24, 4, generator=generator, dtype=torch.float64) * torch.arange(1, 25)[:, None] / 12
        )
        return DataLoader(TensorDataset(data), batch_size=self.batch_size)


def fitted(way: str, strategy: str, devices: int) -> dict[str, torch.Tensor]:
    module = ByHand(way, 8 // devices)
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=devices,
        max_epochs=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module)
    return values_of(module)
