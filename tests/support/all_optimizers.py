"""Every optimizer that torch has, trained under a strategy and in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from stratagem_testing import StrategySubject
from torch import nn
from torch.optim import SGD, Optimizer

import stratagem

STEPS, ROWS = 5, 8


class OwnGlobalNorm(SGD):
    """A user's own optimizer that looks at all gradients at once."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


class OwnRowNorm(Optimizer):
    """A user's own that scales each parameter by its own norm, as LAMB and LARS do."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.norm() / (p.grad.norm() + 1e-6) * p.grad)


class OwnSign(Optimizer):
    """A user's own that treats each element by itself."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["mean"] = state.get("mean", torch.zeros_like(p)).lerp(p.grad, 0.5)
                    p.sub_(group["lr"] * state["mean"].sign())


Make = Callable[[Iterable[Any]], Optimizer]


def _kinds() -> dict[str, Make]:
    names = [
        "ASGD",
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
    ]
    kinds: dict[str, Make] = {}
    for name in [*names, "Rprop", "SGD"]:
        cls = getattr(torch.optim, name)
        variants: list[dict[str, Any]] = [{"foreach": True}, {"foreach": False}]
        if name in ("SGD", "Adam", "AdamW", "Adagrad"):
            variants.append({"fused": True})
        for variant in variants:
            label = f"{name} {next(iter(variant))}={next(iter(variant.values()))}"
            kinds[label] = lambda p, cls=cls, variant=variant: cls(p, lr=0.01, **variant)
    kinds["SGD momentum, nesterov"] = lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    kinds["AdamW amsgrad"] = lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True)
    kinds["RMSprop centered"] = lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True)
    kinds["Adam capturable"] = lambda p: torch.optim.Adam(p, lr=0.01, capturable=True)
    kinds["Adam lr=tensor"] = lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False)
    kinds["Muon"] = lambda p: torch.optim.Muon([each for each in p if each.dim() == 2], lr=0.01)
    kinds["LBFGS"] = lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4)
    kinds["SparseAdam"] = lambda p: torch.optim.SparseAdam([each for each in p if len(each) == 11], lr=0.01)
    kinds["OwnGlobalNorm"] = lambda p: OwnGlobalNorm(p, lr=0.1)
    kinds["OwnRowNorm"] = OwnRowNorm
    kinds["OwnSign"] = OwnSign
    return kinds


KINDS = _kinds()


class Words(nn.Module):
    """An embedding and two layers of odd sizes."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6, sparse=sparse)
        self.hidden = nn.Linear(6, 7)
        self.out = nn.Linear(7, 3, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(torch.tanh(self.hidden(self.words(tokens).mean(1))))
        return output


def net_for(kind: str) -> Words:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Words(sparse=kind == "SparseAdam")


def batch(step: int) -> torch.Tensor:
    return torch.randint(11, (ROWS, 4), generator=torch.Generator().manual_seed(step))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return (output - 1).square().mean()


def plainly(kind: str) -> list[float] | str:
    """Losses, or what torch says where it can't."""
    net = net_for(kind)
    try:
        optimizer = KINDS[kind](net.parameters())
        losses = []
        for step in range(STEPS):

            def evaluate(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(net(batch(step)))
                loss.backward()
                return loss

            losses.append(_stepped(kind, optimizer, evaluate))
    except (TypeError, AssertionError, RuntimeError) as error:
        return str(error)
    return losses


def under(subject: StrategySubject, kinds: list[str]) -> dict[str, list[float] | str]:
    """This rank's losses for each kind, or the refusal. Run by every rank."""
    if subject.own_processes:  # its engine is one per run
        return {kind: subject.runtime().launch(train_all, [kind], quiet=True)[kind] for kind in kinds}
    results: dict[str, list[float] | str] = subject.runtime().launch(train_all, kinds, quiet=True)
    return results


def train_all(runtime: Any, kinds: list[str]) -> dict[str, list[float] | str]:
    results: dict[str, list[float] | str] = {}
    for kind in kinds:
        try:
            results[kind] = _train(runtime, kind)
        except stratagem.CombinationError as error:
            results[kind] = str(error)
    return results


def _train(runtime: Any, kind: str) -> list[float]:
    model, optimizer = runtime.setup(net_for(kind), lambda module: KINDS[kind](module.parameters()))
    losses = []
    share = ROWS // runtime.collectives.data.world_size
    first = runtime.collectives.data.rank * share
    for step in range(STEPS):

        def evaluate(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model(batch(step)[first : first + share]))
            runtime.backward(loss, model)
            return loss

        losses.append(_stepped(kind, optimizer, evaluate))
    return losses


def _stepped(kind: str, optimizer: Any, evaluate: Callable[[], torch.Tensor]) -> float:
    """Step once, and return the loss before it."""
    if kind == "LBFGS":
        return float(torch.as_tensor(optimizer.step(evaluate)).detach())
    loss = evaluate().item()
    optimizer.step()
    return loss


def compare(subject: StrategySubject, refused: Iterable[str], kinds: Iterable[str] = KINDS) -> dict[str, str]:
    """Expect plain torch's losses of all kinds but those that are to be refused; return the refusals."""
    kinds = list(kinds)
    by_rank = subject.run(under, kinds, timeout_s=240)
    refusals = {kind: each for kind, each in by_rank[0].items() if isinstance(each, str)}
    assert sorted(refusals) == sorted(refused), refusals
    for kind in kinds:
        expected = plainly(kind)
        results = [results[kind] for results in by_rank]
        if kind in refusals:
            assert results == [refusals[kind]] * len(results), kind
            continue
        assert not isinstance(expected, str), (kind, expected, results)
        for step, loss in enumerate(expected):
            together = sum(float(each[step]) for each in results) / len(results)
            assert abs(together - loss) < 2e-5 * max(1.0, abs(loss)), (kind, step, together, loss)
    return refusals
