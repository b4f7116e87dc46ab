"""Optimizers that need whole matrices, and a transformer that they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensor_models import Sentences
from torch import Tensor, nn
from torch.optim import Optimizer


class Whitening(Optimizer):
    """As Shampoo: keeps a square matrix for each side of a parameter, which isn't of the parameter's shape."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.reshape(len(parameter), -1)
                state = self.state[parameter]
                if not state:
                    state["count"] = 0
                    state["left"] = torch.eye(len(gradient), dtype=gradient.dtype)
                    state["right"] = torch.eye(gradient.shape[1], dtype=gradient.dtype)
                    state["mean"] = torch.zeros_like(parameter)
                state["count"] += 1
                state["left"] += gradient @ gradient.T
                state["right"] += gradient.T @ gradient
                change = _root(state["left"]) @ gradient @ _root(state["right"])
                state["mean"].lerp_(change.view_as(parameter), 0.5)
                parameter.sub_(group["lr"] * state["mean"])


def _root(matrix: Tensor) -> Tensor:
    """The inverse fourth root."""
    values, vectors = torch.linalg.eigh(matrix.double())
    return ((vectors * values.clamp(min=1e-8) ** -0.25) @ vectors.T).to(matrix.dtype)


class OwnNorms(Optimizer):
    """As LAMB: each parameter's step is as long as the parameter."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    mean.lerp_(parameter.grad, 0.3)
                    parameter.sub_(group["lr"] * parameter.norm() / (mean.norm() + 1e-6) * mean)


class OneRate(Optimizer):
    """As Prodigy: all parameters have one rate, which grows with the distance that they have come in all."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        rate, come, length = self.param_groups[0]["lr"], 0.0, 0.0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["first"] = parameter.clone()
                    state["sum"] = torch.zeros_like(parameter)
                state["sum"].add_(parameter.grad, alpha=rate)
                come += (parameter.grad.flatten() @ (state["first"] - parameter).flatten()).item() * rate
                length += state["sum"].abs().sum().item()
        rate = max(rate, min(1.02 * rate, come / (length + 1e-12)))
        for group in self.param_groups:
            group["lr"], group["steps"] = rate, group["steps"] + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(30 * rate * parameter.grad)


class Sharpness(Optimizer):
    """As SAM: takes the gradient where all parameters have moved by a common length, and lets another one step."""

    def __init__(self, base: Optimizer, length: float = 0.05) -> None:
        self.base, self.length = base, length
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups

    @torch.no_grad()
    def step(self, closure: Any) -> Any:
        with torch.enable_grad():
            loss = closure()
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in moved]).norm()
        for parameter in moved:
            self.state[parameter]["before"] = parameter.clone()
            parameter.add_(parameter.grad * (self.length / (norm + 1e-12)))
        with torch.enable_grad():
            closure()
        for parameter in moved:
            parameter.copy_(self.state[parameter]["before"])
        self.base.step()
        return loss


class Wrapper(Optimizer):
    """Lets another optimizer step, which has states by the parameters that it sees in its groups."""

    def __init__(self, base: Optimizer) -> None:
        self.base = base
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's returns a loss
        self.base.step()


@dataclass(frozen=True)
class WholeSteps(Sentences):
    """The transformer, by optimizers that need whole tensors."""

    kind: str = "whitening"

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        matrices = [each for each in net.parameters() if each.dim() == 2]
        others = [each for each in net.parameters() if each.dim() != 2]
        if self.kind == "whitening":
            return [Whitening(net.parameters())]
        if self.kind == "one rate":
            return [OneRate([{"params": matrices}, {"params": others}])]
        if self.kind == "sharpness":
            return [Sharpness(torch.optim.Adam(net.parameters(), lr=0.01))]
        if self.kind == "lbfgs":
            return [torch.optim.LBFGS(net.parameters(), lr=0.05, max_iter=3, history_size=4)]
        if self.kind == "wrapped":
            return [Wrapper(Whitening(net.parameters()))]
        if self.kind == "norms":
            return [OwnNorms([{"params": matrices}, {"params": others, "lr": 0.01}])]
        if self.kind == "adafactor":
            return [torch.optim.Adafactor(net.parameters(), lr=0.01)]
        return [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=1e-3)]
