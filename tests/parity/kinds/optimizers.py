"""Optimizers: all of torch (capturable=True needs a GPU), and two by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tests.parity.kind import Kind
from tests.parity.kinds.layers import Words

DIVIDES = "divides gradients by their size: what they differ by in rounding counts more where they are small"


class Optimized(Kind, abstract=True):
    theme = "optimizers"
    make: Callable[..., Any]

    def optimizers(self, net: nn.Module) -> Any:
        return type(self).make(net.parameters())


def _kind(name: str, title: str, make: Callable[..., Any], base: type = Optimized, **fields: Any) -> None:
    if fields.get("tolerance"):
        fields["tolerance_reason"] = fields.get("tolerance_reason", DIVIDES)
    type(name, (base,), {"__doc__": title, "make": staticmethod(make), "theme": "optimizers", **fields})


_O = torch.optim
_kind("SgdNesterov", "SGD with Nesterov momentum and weight decay",
      lambda p: _O.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1))  # fmt: skip
_kind("SgdForeach", "SGD, foreach", lambda p: _O.SGD(p, lr=0.1, momentum=0.9, foreach=True))
_kind("SgdFused", "SGD, fused", lambda p: _O.SGD(p, lr=0.1, momentum=0.9, fused=True))
_kind("Adam", "Adam", lambda p: _O.Adam(p, lr=0.01), tolerance=1e-3)
_kind("AdamwForeach", "AdamW, foreach", lambda p: _O.AdamW(p, lr=0.01, foreach=True), tolerance=1e-3)
_kind("AdamwFused", "AdamW, fused", lambda p: _O.AdamW(p, lr=0.01, fused=True), tolerance=1e-3)
_kind("AdamAmsgrad", "Adam with amsgrad", lambda p: _O.Adam(p, lr=0.01, amsgrad=True), tolerance=1e-3)
_kind("AdamTensorRate", "Adam with its rate in a tensor",
      lambda p: _O.Adam(p, lr=torch.tensor(0.01), foreach=False), tolerance=1e-3)  # fmt: skip
_kind("Adadelta", "Adadelta", lambda p: _O.Adadelta(p, lr=1.0), tolerance=1e-3)
_kind("Adagrad", "Adagrad", lambda p: _O.Adagrad(p, lr=0.05), tolerance=1e-3)
_kind("Adamax", "Adamax", lambda p: _O.Adamax(p, lr=0.01), tolerance=1e-3)
_kind("Nadam", "NAdam", lambda p: _O.NAdam(p, lr=0.01), tolerance=1e-3)
_kind("Radam", "RAdam", lambda p: _O.RAdam(p, lr=0.01), tolerance=1e-3, count=8)
_kind("Rmsprop", "RMSprop with momentum, centered",
      lambda p: _O.RMSprop(p, lr=0.005, momentum=0.9, centered=True), tolerance=1e-3)  # fmt: skip
_kind("Asgd", "ASGD", lambda p: _O.ASGD(p, lr=0.1))
_kind("Rprop", "Rprop", lambda p: _O.Rprop(p, lr=0.01), tolerance=1e-3)
_kind("Adafactor", "Adafactor", lambda p: _O.Adafactor(p, lr=0.05), tolerance=1e-3)
_kind("Lbfgs", "LBFGS", lambda p: _O.LBFGS(p, lr=0.1, max_iter=3), tolerance=1e-3)
_kind("LbfgsStrongWolfe", "LBFGS with strong_wolfe",
      lambda p: _O.LBFGS(p, lr=1.0, max_iter=4, line_search_fn="strong_wolfe"), tolerance=2e-3)  # fmt: skip


class SparseAdam(Words):
    """SparseAdam for an embedding, SGD for the rest."""

    theme = "optimizers"
    tolerance = 1e-3
    tolerance_reason = DIVIDES

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(40, 6, sparse=True), nn.Flatten(), nn.Linear(30, 3))

    def optimizers(self, net: nn.Module) -> Any:
        return [_O.SparseAdam(net[0].parameters(), lr=0.01), _O.SGD(net[2].parameters(), lr=0.1)]


class Muon(Optimized):
    """Muon for matrices, AdamW for the rest."""

    tolerance = 5e-3
    tolerance_reason = "orthogonalizes in bfloat16"

    def optimizers(self, net: nn.Module) -> Any:
        matrices = [p for p in net.parameters() if p.ndim == 2]
        return [_O.Muon(matrices, lr=0.02), _O.AdamW([p for p in net.parameters() if p.ndim != 2], lr=0.01)]


class GlobalNorm(torch.optim.Optimizer):
    """Steps along the gradient of unit length over all parameters: needs one number of them all."""

    def __init__(self, params: Iterable[Any], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.square().sum() for p in every]).sum().sqrt()
        for p in every:
            p -= self.param_groups[0]["lr"] * p.grad / norm


_kind("UsersGlobalNorm", "A user's optimizer with one norm over all gradients", lambda p: GlobalNorm(p, 0.1))


class UsersMomentum(torch.optim.Optimizer):
    """Works on each element by itself."""

    def __init__(self, params: Iterable[Any], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["mean"] = 0.9 * state["mean"] + p.grad if "mean" in state else p.grad.clone()
                p -= group["lr"] * state["mean"]


_kind("UsersElementwise", "A user's optimizer that works on each element", lambda p: UsersMomentum(p, 0.05))


class ParameterGroups(Optimized):
    """Parameter groups with rates and decay of their own."""

    def optimizers(self, net: nn.Module) -> Any:
        biases = [p for p in net.parameters() if p.ndim == 1]
        weights = [p for p in net.parameters() if p.ndim == 2]
        return _O.SGD(
            [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.2}], lr=0.05, momentum=0.9
        )


class SeveralOptimizers(Optimized):
    """Two optimizers, for two parts, after one loss."""

    def optimizers(self, net: nn.Module) -> Any:
        return [
            _O.SGD(net[0].parameters(), lr=0.1),
            _O.SGD([*net[2].parameters(), *net[4].parameters()], lr=0.05),
        ]
