"""Models and loops that a step does something unusual in; each is also trained by a plain PyTorch loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from stratagem_testing import StrategySubject
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS, RANKS = 6, 2


def make_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def batch_of(index: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * index + rank)
    return torch.randn(4, 6, generator=generator), torch.randint(4, (4,), generator=generator)


class Case:
    """A network and a loop. `index` counts micro-batches."""

    accumulate = 1

    def net(self) -> nn.Module:
        return make_net()

    def inside(self, net: nn.Module, index: int) -> None:
        """What training_step does before its loss, the same on each rank."""

    def before(self, net: nn.Module, index: int) -> None:
        """What is done before a batch, by a callback."""

    def loss(self, net: nn.Module, index: int, rank: int) -> Tensor | None:
        x, y = batch_of(index, rank)
        return F.cross_entropy(net(x), y)

    def optimizer(self, net: nn.Module) -> Optimizer:
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


class Unused(Case):
    """A layer that no loss depends on keeps its values, weight decay or not."""

    def net(self) -> nn.Module:
        net = make_net()
        net.spare = nn.Linear(3, 3)
        return net

    def loss(self, net: Any, index: int, rank: int) -> Tensor | None:
        x, y = batch_of(index, rank)
        for layer in list(net)[:5]:
            x = layer(x)
        return F.cross_entropy(x, y)


class UnusedAdam(Unused):
    def optimizer(self, net: nn.Module) -> Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)


class FrozenLater(Case):
    def before(self, net: Any, index: int) -> None:
        net[2].requires_grad_(not 2 <= index < 4)


class FrozenGroup(Case):
    """A layer with a group of its own trains later than others, under an optimizer that counts steps."""

    def before(self, net: Any, index: int) -> None:
        net[2].requires_grad_(index >= 3)

    def optimizer(self, net: Any) -> Optimizer:
        rest = [*net[0].parameters(), *net[4].parameters()]
        groups = [{"params": rest}, {"params": list(net[2].parameters()), "lr": 0.02}]
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


class ToggledInside(Case):
    def inside(self, net: Any, index: int) -> None:
        net[2].requires_grad_(index % 2 == 0)


class Experts(Case):
    """Ranks use other experts of the same shape, and sometimes all the same one."""

    adam = False

    def net(self) -> nn.Module:
        torch.manual_seed(5)
        experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        return nn.ModuleDict({"experts": experts, "head": nn.Linear(6, 4)})

    def loss(self, net: Any, index: int, rank: int) -> Tensor | None:
        x, y = batch_of(index, rank)
        order = [index % 3, (index + 1 + rank) % 3]
        for expert in order:
            x = torch.tanh(net["experts"][expert](x))
        return F.cross_entropy(net["head"](x), y)


class ExpertsAccumulated(Experts):
    accumulate = 2


class NoneOnOne(Case):
    """Each rank has nothing to learn from some batches, also from the last of a step."""

    accumulate = 2

    def loss(self, net: nn.Module, index: int, rank: int) -> Tensor | None:
        loss = super().loss(net, index, rank)
        return None if (index + rank) % 3 == 0 else loss


class NoneOnAll(Case):
    def loss(self, net: nn.Module, index: int, rank: int) -> Tensor | None:
        loss = super().loss(net, index, rank)
        return None if index in (1, 3) else loss


class NoneOnAllAccumulated(NoneOnAll):
    accumulate = 2


class Clamped(Case):
    """Weights are limited in place."""

    def inside(self, net: nn.Module, index: int) -> None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.clamp_(-0.2, 0.2)


class ClampedData(Case):
    def inside(self, net: nn.Module, index: int) -> None:
        for parameter in net.parameters():
            parameter.data.clamp_(-0.2, 0.2)


class ClampedBetween(Case):
    def before(self, net: nn.Module, index: int) -> None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.clamp_(-0.2, 0.2)


class Target(Case):
    """A network that follows the trained one, and that the loss is taken against."""

    def net(self) -> nn.Module:
        target = make_net()
        target.requires_grad_(False)
        return nn.ModuleDict({"online": make_net(), "target": target})

    def inside(self, net: Any, index: int) -> None:
        with torch.no_grad():
            for own, other in zip(net["target"].parameters(), net["online"].parameters()):
                own.lerp_(other, 0.3)

    def loss(self, net: Any, index: int, rank: int) -> Tensor | None:
        x, y = batch_of(index, rank)
        made = net["online"](x)
        return F.cross_entropy(made, y) + F.mse_loss(made, net["target"](x + 1))

    def optimizer(self, net: Any) -> Optimizer:
        return torch.optim.SGD(net["online"].parameters(), lr=0.1, momentum=0.9)


class TargetCopy(Target):
    """A network that takes the trained one's weights over by its state dict."""

    def inside(self, net: Any, index: int) -> None:
        if index % 2:
            net["target"].load_state_dict(net["online"].state_dict())


class Penalty(Case):
    """The loss has a term of the weights themselves."""

    def loss(self, net: nn.Module, index: int, rank: int) -> Tensor | None:
        loss = super().loss(net, index, rank)
        assert loss is not None
        return loss + 0.05 * sum(p.square().sum() for p in net.parameters() if p.dim() > 1)


class Hooks(Case):
    def net(self) -> nn.Module:
        net: Any = make_net()
        net[0].weight.register_hook(lambda gradient: 0.5 * gradient)
        net[2].weight.register_post_accumulate_grad_hook(_halve)
        return net


class HooksAccumulated(Hooks):
    accumulate = 2


def _halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


class Attributes(Case):
    """The optimizer's groups are distinguished by attributes of parameters, and by a list of them."""

    def net(self) -> nn.Module:
        net: Any = make_net()
        net[0].weight.no_decay = True
        net.listed = [net[2].weight, net[2].bias]
        return net

    def optimizer(self, net: Any) -> Optimizer:
        listed = {id(p) for p in net.listed}
        rest = [p for p in net.parameters() if id(p) not in listed]
        kept = [p for p in rest if getattr(p, "no_decay", False)]
        groups = [
            {"params": net.listed, "lr": 0.2},
            {"params": kept, "weight_decay": 0.0},
            {"params": [p for p in rest if not getattr(p, "no_decay", False)]},
        ]
        return torch.optim.SGD(groups, lr=0.1, weight_decay=0.1)


CASES: dict[str, type[Case]] = {each.__name__: each for each in Case.__subclasses__()} | {
    each.__name__: each
    for each in (UnusedAdam, ExpertsAccumulated, NoneOnAllAccumulated, HooksAccumulated, TargetCopy)
}
"""What is right wherever parameters are whole."""


class Unfrozen(Case):
    """The optimizer has a layer that is frozen until later."""

    def net(self) -> nn.Module:
        net: Any = make_net()
        net[2].requires_grad_(False)
        return net

    def before(self, net: Any, index: int) -> None:
        net[2].requires_grad_(index >= 2)


class UnfrozenInside(Unfrozen):
    def before(self, net: Any, index: int) -> None:
        pass

    def inside(self, net: Any, index: int) -> None:
        net[2].requires_grad_(index >= 2)


class FrozenForAWhileAdam(FrozenLater):
    def optimizer(self, net: nn.Module) -> Optimizer:
        return torch.optim.Adam(net.parameters(), lr=0.01)


class Doubles(Case):
    def net(self) -> nn.Module:
        net: Any = make_net()
        net[2].double()
        return net

    def loss(self, net: Any, index: int, rank: int) -> Tensor | None:
        x, y = batch_of(index, rank)
        x = net[3](net[2](net[1](net[0](x)).double()))
        return F.cross_entropy(net[4](x.float()), y)


class HookedLate(Case):
    def before(self, net: Any, index: int) -> None:
        if index == 2:
            net[0].weight.register_post_accumulate_grad_hook(_halve)


class AddedGroup(Unfrozen):
    """A layer is given to the optimizer as late as it is unfrozen."""

    def before(self, net: Any, index: int) -> None:
        if index == 2:
            net[2].requires_grad_(True)
            self.made.add_param_group({"params": list(net[2].parameters()), "lr": 0.02})

    def optimizer(self, net: Any) -> Optimizer:
        self.made = torch.optim.SGD([*net[0].parameters(), *net[4].parameters()], lr=0.1, momentum=0.9)
        return self.made


class Dimensionless(Case):
    def net(self) -> nn.Module:
        net: Any = make_net()
        net.scale = nn.Parameter(torch.tensor(1.5))
        return net

    def loss(self, net: Any, index: int, rank: int) -> Tensor | None:
        x, y = batch_of(index, rank)
        return F.cross_entropy(net(x) * net.scale, y)


REFUSED: dict[str, type[Case]] = {
    each.__name__: each
    for each in (
        Unfrozen,
        UnfrozenInside,
        FrozenForAWhileAdam,
        Doubles,
        HookedLate,
        AddedGroup,
        Dimensionless,
    )
}
"""What the engine can't do where it steps flat partitions."""


USED_OUTSIDE = ("Clamped", "ClampedData", "ClampedBetween", "Target", "TargetCopy", "Penalty")
"""Cases that use parameters outside of their layer's forward."""


@contextmanager
def gathered(net: nn.Module) -> Iterator[None]:
    """Have parameters whole, as DeepSpeed's users write it; does nothing where they are."""
    from deepspeed import zero

    with torch.no_grad(), zero.GatheredParameters(list(net.parameters()), modifier_rank=0):
        yield


class ClampedGathered(ClampedBetween):
    def before(self, net: nn.Module, index: int) -> None:
        with gathered(net):
            super().before(net, index)


class ClampedDataGathered(ClampedData):
    def before(self, net: nn.Module, index: int) -> None:
        with gathered(net):
            super().inside(net, index)

    def inside(self, net: nn.Module, index: int) -> None:
        pass


class TargetGathered(Target):
    def before(self, net: Any, index: int) -> None:
        with gathered(net):
            super().inside(net, index)

    def inside(self, net: Any, index: int) -> None:
        pass


class AssignedBetween(Case):
    def before(self, net: nn.Module, index: int) -> None:
        for parameter in net.parameters():
            parameter.data = torch.zeros(parameter.shape)


class PenaltyGathered(Penalty):
    """One of its parameters is a single number, with which an empty one would broadcast."""

    def net(self) -> nn.Module:
        return nn.Sequential(*make_net(), nn.Linear(4, 1, bias=False), nn.Linear(1, 4))

    def before(self, net: nn.Module, index: int) -> None:
        from deepspeed import zero

        with zero.GatheredParameters(list(net.parameters())):
            self.term = 0.05 * net[-2].weight.square().sum()

    def loss(self, net: nn.Module, index: int, rank: int) -> Tensor | None:
        loss = Case.loss(self, net, index, rank)
        assert loss is not None
        return loss + self.term


GATHERED: dict[str, type[Case]] = {
    each.__name__: each for each in (ClampedGathered, ClampedDataGathered, TargetGathered)
}
"""The same, as stage 3 has them."""
LOST: dict[str, type[Case]] = {each.__name__: each for each in (AssignedBetween, PenaltyGathered)}
"""What stage 3 would drop."""

ALL = CASES | REFUSED | GATHERED | LOST


class Trained(stratagem.Module):
    """A case as the trainer takes it."""

    def __init__(self, case: Case, deferred: bool = False) -> None:
        super().__init__()
        self.case = case
        if not deferred:
            self.net = case.net()

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            self.net = self.case.net()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        self.case.inside(self.net, batch_idx)
        return self.case.loss(self.net, batch_idx, self.trainer.global_rank)

    def configure_optimizers(self) -> Optimizer:
        return self.case.optimizer(self.net)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.zeros(STEPS * RANKS * self.case.accumulate, 1)), 1)


class Watch(stratagem.Callback):
    """Acts before batches, and keeps the weights at the end."""

    weights: dict[str, Tensor]

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        module.case.before(module.net, batch_idx)

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        if stage != "fit":
            return
        tensors = trainer.prepared.model_tensors()
        self.weights = {
            key.removeprefix("model/net."): getattr(value, "full_tensor", value.clone)()
            for key, value in tensors.items()
        }


def train(
    own: StrategySubject, names: list[str], deferred: bool = False, precision: str = "32-true"
) -> dict[str, Any]:
    """Train each case in this rank; return its weights, or the words of its error."""
    came: dict[str, Any] = {}
    for name in names:
        case, watch = ALL[name](), Watch()
        trainer = own.trainer(
            callbacks=[watch], max_epochs=1, accumulate_grad_batches=case.accumulate, precision=precision
        )
        try:
            trainer.fit(Trained(case, deferred))
            came[name] = watch.weights
        except stratagem.UsageError as error:
            came[name] = str(error)
    return came


def train_one(own: StrategySubject, name: str) -> None:
    """Train one case in this rank, whose errors are for the caller."""
    own.trainer(max_epochs=1, accumulate_grad_batches=ALL[name].accumulate).fit(Trained(ALL[name]()))


def train_plainly(name: str) -> dict[str, Tensor]:
    """The same in one process and plain torch: the ranks' losses are averaged."""
    case = ALL[name]()
    net = case.net().train()
    optimize(case, net)
    return dict(net.state_dict())


def optimize(case: Case, net: nn.Module) -> None:
    """One run."""
    optimizer = case.optimizer(net)
    for step in range(STEPS):
        for index in range(step * case.accumulate, (step + 1) * case.accumulate):
            case.before(net, index)
            case.inside(net, index)
            losses = [case.loss(net, index, rank) for rank in range(RANKS)]
            total = sum(loss for loss in losses if loss is not None)
            if isinstance(total, Tensor):
                (total / RANKS / case.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()


class MarkedAndHooked(Attributes):
    def net(self) -> nn.Module:
        net: Any = super().net()
        net[4].weight.register_hook(lambda gradient: 0.5 * gradient)
        return net


class Validated(Trained):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch_of(0, 0)
        self.log("val", F.cross_entropy(self.net(x), y))

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.zeros(RANKS, 1)), 1)


def fit_validate_and_fit(own: StrategySubject) -> tuple[dict[str, Tensor], list[float], dict[str, Any]]:
    """As a script under torchrun; return the weights, the loss before and after the second run's start, and marks."""
    module = Validated(MarkedAndHooked())
    settings: dict[str, Any] = {"max_epochs": 1}
    trainer = own.trainer(**settings)
    trainer.fit(module)
    losses = [float(trainer.callback_metrics["val"])]
    trainer = own.trainer()
    trainer.validate(module)
    losses.append(float(trainer.callback_metrics["val"]))
    watch = Watch()
    own.trainer(callbacks=[watch], **settings).fit(module)
    net: Any = module.net
    marked = {
        "no_decay": net[0].weight.no_decay,
        "hooks": len(net[4].weight._backward_hooks),
        "listed": net.listed[0] is net[2].weight,
    }
    return watch.weights, losses, marked


def train_twice_plainly() -> dict[str, Tensor]:
    """Two runs with optimizers of their own."""
    case = MarkedAndHooked()
    net = case.net()
    for _ in range(2):
        optimize(case, net)
    return dict(net.state_dict())
