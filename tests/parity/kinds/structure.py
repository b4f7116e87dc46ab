"""How a model is put together: shared, unused, listed, routed, looked into from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parity.kind import Kind, mlp, stack
from tests.parity.kinds.layers import Words
from tests.parity.kinds.models import VOCABULARY


class Structure(Kind, abstract=True):
    theme = "structure"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.middle(self.embedding(words)).tanh())


class SharedParameters(Words):
    """Parameters shared by two modules."""

    options = {"pipeline": {"split_points": ["middle"]}}
    theme = "structure"

    def net(self) -> nn.Module:
        return Tied()

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        words, _ = batch
        return F.cross_entropy(net(words).flatten(0, 1), words.flatten())


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 16), mlp(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.block(self.block(x)))


class ModuleTwice(Structure):
    """Module used twice in one forward."""

    options = {"pipeline": {"pipeline_module": "net.block"}}

    def net(self) -> nn.Module:
        return Twice()


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(6, 6) * 0.3) for _ in range(2)])
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(6)), "b": nn.Parameter(torch.zeros(6))})
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return self.head(x * self.scales["a"] + self.scales["b"])


class ParameterLists(Structure):
    """nn.ParameterList and nn.ParameterDict."""

    def net(self) -> nn.Module:
        return Listed()


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = mlp(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class UnusedParameters(Structure):
    """Parameters that no forward uses."""

    def net(self) -> nn.Module:
        return WithUnused()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(), mlp()

    def forward(self, x: Tensor, which: int) -> Tensor:
        return (self.first, self.second)[which](x)


class UnusedInTurn(Structure):
    """Branches that take turns from step to step."""

    def net(self) -> nn.Module:
        return Branches()

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        return F.mse_loss(net(batch[0], context.index % 2), batch[1])


class Experts(nn.Module):
    """Top-1 routing, or a mixture of all."""

    def __init__(self, top: bool) -> None:
        super().__init__()
        self.top, self.router = top, nn.Linear(6, 4)
        self.experts = nn.ModuleList(mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        if not self.top:
            return sum(w[:, None] * expert(x) for w, expert in zip(weights.T, self.experts))
        chosen = weights.argmax(-1)
        y = x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                y = y.index_add(0, rows, weights[rows, number, None] * expert(x[rows]))
        return y


class MoeAll(Structure):
    """Mixture of experts, all used."""

    def net(self) -> nn.Module:
        return Experts(top=False)


class MoeTop1(Structure):
    """Mixture of experts, top-1: some ranks use none of an expert's samples."""

    def net(self) -> nn.Module:
        return Experts(top=True)


class ExpertsByRank(Structure):
    """Experts whose order differs between ranks."""

    per_share = asks_share = True
    per_share_reason = "the step asks which share it has"

    def net(self) -> nn.Module:
        return Branches()

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(net(x, context.share % 2), y)


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class LoraBeside(Structure):
    """LoRA beside frozen layers."""

    def net(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 16).requires_grad_(False), Lora(), nn.Tanh(), Lora(), nn.Linear(16, 3)
        )


class DictOutputs(Structure):
    """Net that returns a dict; loss in a dict with extras."""

    def net(self) -> nn.Module:
        return InDict()

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        loss = F.mse_loss(net(batch[0])["scores"], batch[1])
        return {"loss": loss, "twice": 2 * loss.detach()}


class InDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.net(x)}


class DictBatches(Structure):
    """Batches as dicts."""

    def sample(self, generator: torch.Generator) -> Any:
        x, y = super().sample(generator)
        return {"x": x, "more": {"y": y}}

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        return F.mse_loss(net(batch["x"]), batch["more"]["y"])


class FunctionalWeight(Structure):
    """Weight of a block used outside of it, by F.linear."""

    def net(self) -> nn.Module:
        return stack()

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        x, y = batch
        hidden = F.linear(x, net[0][0].weight, net[0][0].bias).tanh()
        return F.mse_loss(net(x), y) + 0.1 * hidden.square().mean()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.scale / self.temperature.exp()


class ZeroDim(Structure):
    """0-dim parameters."""

    lr = 0.05

    def net(self) -> nn.Module:
        return Scaled()


class Phases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 4)
        self.mixing = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.net(x).to(torch.complex64) @ self.mixing).abs()


class ComplexParameters(Structure):
    """Complex parameters beside real ones."""

    def net(self) -> nn.Module:
        return Phases()
