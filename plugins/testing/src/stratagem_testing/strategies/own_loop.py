"""Your own training loop, on `Runtime`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stratagem.errors import ConfigError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.subject import StrategySubject
from stratagem_testing.workers import shared_workers

if TYPE_CHECKING:
    from stratagem import Runtime

STEPS, BATCH = 5, 16


class _Actor(nn.Module):
    """A module that is called through a method other than `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _seeded(4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def choose(self, x: Tensor) -> Tensor:
        logits: Tensor = self(x)
        return logits.log_softmax(-1)


def _seeded(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(outputs)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs), nn.Identity())


class _Plain:
    """The part of the interface of `Runtime` that the loop below uses, in plain torch."""

    data_rank, device = 0, torch.device("cpu")

    def setup(self, module: nn.Module, optimizer: Any, forward_methods: Any = ()) -> tuple[nn.Module, Any]:
        return module, optimizer

    def backward(self, loss: Tensor, module: nn.Module) -> None:
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it


def _loop(
    runtime: Any, subject: StrategySubject, shares: int, path: str, *, saves: int, loads: bool
) -> list[Any]:
    """Train actor and critic alternately; return the losses on this rank's samples. Run by every rank.

    Args:
        runtime: an entered runtime, or `_Plain`.
        subject: may replace the optimizers.
        shares: number of ranks that share the samples.
        path: path of the checkpoint.
        saves: step after which it is written; 0 for none.
        loads: whether to resume from it.
    """
    replaced = subject.optimizer or (lambda optimizer: optimizer)
    actor: Any = _Actor()
    critic: Any = _seeded(1)
    actor, of_actor = runtime.setup(
        actor, replaced(torch.optim.SGD(actor.parameters(), lr=0.1, momentum=0.9)), forward_methods=["choose"]
    )
    critic, of_critic = runtime.setup(
        critic, replaced(torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9))
    )
    state = {"actor": actor, "critic": critic, "step": 0}
    if loads:
        runtime.load(path, state)
    generator = torch.Generator().manual_seed(11)
    x, y = torch.randn(STEPS * BATCH, 6, generator=generator), torch.arange(STEPS * BATCH) % 4
    losses = []
    for step in range(state["step"], STEPS):
        own = slice(step * BATCH + runtime.data_rank, (step + 1) * BATCH, shares)
        inputs, targets = x[own].to(runtime.device), y[own].to(runtime.device)
        loss = F.nll_loss(actor.choose(inputs), targets)
        of_actor.zero_grad()
        runtime.backward(loss, actor)
        of_actor.step()
        error = F.mse_loss(critic(inputs).squeeze(-1), targets.float())
        of_critic.zero_grad()
        runtime.backward(error, critic)
        of_critic.step()
        losses += [loss.detach().cpu(), error.detach().cpu()]
        if step + 1 == saves:
            runtime.save(path, {**state, "step": saves})
    return [float(loss) for loss in losses]


def _in_run(subject: StrategySubject) -> tuple[list[float], list[float]] | str:
    path = f"{subject.folder}/both"
    try:
        whole = subject.runtime().launch(_called, subject, path, 2, False, quiet=True)
        return whole, subject.runtime().launch(_called, subject, path, 0, True, quiet=True)
    except ConfigError as error:
        return str(error)


def _called(runtime: Runtime, subject: StrategySubject, path: str, saves: int, loads: bool) -> list[Any]:
    return _loop(runtime, subject, subject.shares(), path, saves=saves, loads=loads)


@check(world_sizes=(1, 2))
def check_own_loop(subject: StrategySubject) -> None:
    """Your own training loop trains two modules as plain PyTorch does, and resumes from one checkpoint of both."""
    ranks = subject.run(_in_run)
    if isinstance(ranks[0], str):
        expect(all(isinstance(each, str) for each in ranks), f"only some ranks were refused: {ranks[0]}")
        raise NotApplicable(ranks[0])
    plain = shared_workers().run(1, _plainly, subject)[0]
    for which, alone in enumerate((plain, plain[4:])):
        together = [sum(losses) / len(ranks) for losses in zip(*(each[which] for each in ranks))]
        expect(len(together) == len(alone), f"there are {len(together)} losses, not {len(alone)}")
        for index, (ours, theirs) in enumerate(zip(together, alone)):
            expect(
                abs(ours - theirs) <= subject.tolerance(),
                f"{'after loading, ' if which else ''}the loss of the {'critic' if index % 2 else 'actor'} in step "
                f"{index // 2 + (2 if which else 0)} is {ours:.8g}, but {theirs:.8g} in one process",
            )


def _plainly(subject: StrategySubject) -> list[float]:
    return _loop(_Plain(), subject, 1, "", saves=0, loads=False)
