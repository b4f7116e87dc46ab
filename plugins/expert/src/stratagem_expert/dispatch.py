"""Tokens travel to the ranks of their experts, and what these computed travels back.

A token goes once to each of its k experts, with the weight that the router gave it, and the expert's own module
applies the weight. So a router's gradient is that of one process, whatever the module does with weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from stratagem_sharding.torch_private import own_parameters
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stratagem import ConfigError

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from stratagem_expert.mixtures import Mixture


def dispatch_tokens(mixture: Mixture, group: dist.ProcessGroup) -> list[RemovableHandle]:
    """Let forwards of a mixture compute with the tokens of all ranks. Not collective, but the forwards are.

    Args:
        mixture: its parameters are shards of the experts.
        group: the ranks that have these.

    Returns:
        Handles, whose `remove` undoes it.
    """
    hooks = _Hooks(mixture, group)

    # Functions, which a deep copy of a module shares with it, as it shares the ranks' group.
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return hooks.before(module, args, kwargs)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return hooks.after(module, output)

    return [
        mixture.module.register_forward_pre_hook(before, with_kwargs=True),
        mixture.module.register_forward_hook(after, prepend=True, always_call=True),
    ]


class _Hooks:
    """What happens before and after the forward of one mixture."""

    def __init__(self, mixture: Mixture, group: dist.ProcessGroup) -> None:
        self._mixture, self._group = mixture, group
        self._entered: list[tuple[_Route, Callable[[], None]]] = []

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = self._mixture.arguments
        given = {**dict(zip(names, args)), **kwargs}
        hidden, index, weights = self._checked([given.get(name) for name in names], len(args) > len(names))
        route = _Route.of(index, self._mixture.experts, self._group)
        sent = dict(zip(names, route.dispatched(hidden, weights)))
        self._entered.append((route, _own_experts(module, self._mixture.experts, self._group.size())))
        return (
            tuple(sent[name] for name in names[: len(args)]),
            {name: sent.get(name, value) for name, value in kwargs.items()},
        )

    def after(self, module: nn.Module, output: Any) -> Any:
        if not self._entered:
            return None  # another hook raised before `before`
        route, restore = self._entered.pop()
        restore()
        return None if output is None else route.combined(output)  # None: it raised

    def _checked(self, values: list[Any], has_more: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden states, indices and weights, if that is what values are."""
        tensors = [each for each in values if isinstance(each, Tensor)]
        if len(tensors) == 3 and not has_more:
            hidden, index, weights = tensors
            fits = hidden.dim() == index.dim() == 2 and weights.shape == index.shape
            if fits and len(index) == len(hidden) and not index.is_floating_point():
                return hidden, index, weights
        shapes = ", ".join(f"{tuple(each.shape)} of {each.dtype}" for each in tensors) or "no tensors"
        raise ConfigError(
            f"{self._mixture.name!r} was called with {shapes}, and axis 'expert' takes hidden states of shape "
            "(tokens, width), and indices and weights of experts of shape (tokens, k): call it with these"
        )


def _own_experts(module: nn.Module, experts: int, ranks: int) -> Callable[[], None]:
    """Let a module compute with this rank's experts; return what puts the shards back.

    Gradients are divided by the number of ranks, as those of all other parameters are averages over ranks: each
    expert gets the sum over the tokens of all ranks.
    """
    table = own_parameters(module)
    shards = {name: each for name, each in table.items() if isinstance(each, DTensor)}
    for name, shard in shards.items():
        table[name] = _averaged(shard.to_local(), ranks)
    counts = [name for name in ("num_experts",) if getattr(module, name, None) == experts]
    for name in counts:
        setattr(module, name, experts // ranks)

    def restore() -> None:
        table.update(shards)
        for name in counts:
            setattr(module, name, experts)

    return restore


@dataclass(frozen=True)
class _Route:
    """Where the tokens of one forward go, and in which order."""

    order: Tensor
    """Of (token, choice) pairs, flattened: sorted by expert."""
    choices: int
    """Experts of a token."""
    sent: list[int]
    """Pairs that go to each rank."""
    received: list[int]
    """Pairs that come from each rank."""
    experts: Tensor
    """Of each pair that comes: number of its expert among this rank's."""
    group: dist.ProcessGroup

    @classmethod
    def of(cls, index: Tensor, experts: int, group: dist.ProcessGroup) -> _Route:
        """Ask all ranks how many pairs come from them. Collective.

        Args:
            index: (tokens, k), numbers of experts.
            experts: how many there are.
            group: the ranks that have them.

        Raises:
            ConfigError: a number that no expert has.
        """
        flat = index.detach().flatten().long()
        counts = torch.bincount(flat, minlength=experts)
        if len(counts) > experts:
            raise ConfigError(
                f"the router chose expert {len(counts) - 1}, and there are {experts}, numbered from 0: choose one of "
                "these, and give a token that has none the weight 0"
            )
        size = group.size()
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts, group=group)
        coming = coming.view(size, -1)
        own = torch.arange(experts // size, device=flat.device).repeat(size)
        return cls(
            flat.argsort(stable=True),
            index.shape[1],
            counts.view(size, -1).sum(1).tolist(),
            coming.sum(1).tolist(),
            own.repeat_interleave(coming.flatten()),
            group,
        )

    def dispatched(self, hidden: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden states, indices and weights as this rank's experts get them. Collective.

        A rank whose experts get nothing computes with a token of zeros, so that its part of the graph is there:
        backward is collective, and every parameter has a gradient.
        """
        tokens = _exchanged(hidden[self.order // self.choices], self.sent, self.received, self.group)
        weight = _exchanged(weights.reshape(-1)[self.order], self.sent, self.received, self.group)
        index = self.experts
        if not len(index):
            tokens = torch.cat([tokens, tokens.new_zeros(1, *tokens.shape[1:])])
            weight, index = torch.cat([weight, weight.new_zeros(1)]), index.new_zeros(1)
        return tokens, index[:, None], weight[:, None]

    def combined(self, output: Tensor) -> Tensor:
        """Return the sum over its experts for each token of this rank. Collective.

        Args:
            output: of this rank's experts for each pair that came.
        """
        back = _exchanged(output[: len(self.experts)], self.received, self.sent, self.group)
        tokens = back.new_zeros(len(self.order) // self.choices, *back.shape[1:])
        return tokens.index_add(0, self.order // self.choices, back)


def _exchanged(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send some rows to each rank, and return those that came, by rank; gradients go the other way. Collective."""
    came: Tensor = _AllToAll.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]  # torch has no types for it
    return came


def _averaged(tensor: Tensor, ranks: int) -> Tensor:
    """Return the tensor, whose gradient is divided by a number of ranks."""
    same: Tensor = _Averaged.apply(tensor, ranks)  # type: ignore[no-untyped-call]  # torch has no types for it
    return same


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        output = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _exchanged(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] / ctx.ranks, None
