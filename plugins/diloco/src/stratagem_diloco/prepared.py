"""What the loop calls per step under diloco."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.drifting import DriftingPrepared, Tensors
from stratagem_sharding.mean_exchange import MeanExchange

from stratagem import SetupRequest
from stratagem_diloco.outer import OuterOptimizer, fragments_of

if TYPE_CHECKING:
    from stratagem_diloco.strategy import DiLoCoStrategy


@dataclass(frozen=True)
class _InFlight:
    """A fragment whose outer gradients are on their way."""

    fragment: int
    names: list[str]
    sent_at: int
    exchange: MeanExchange


class DiLoCoPrepared(DriftingPrepared):
    """A replica that trains independently and takes outer steps with the others.

    DiLoCo (Douillard et al., https://arxiv.org/abs/2311.08105), algorithm 1; with several fragments, overlap and
    mixing, Streaming DiLoCo (Douillard et al., https://arxiv.org/abs/2501.18512), algorithm 2. What is sent and
    stepped is on the CPU, whatever device trains.

    Args:
        request: as everywhere. Its collectives are of all ranks.
        strategy: has the settings, and opens the group in which outer gradients are sent. Collective.
    """

    def __init__(self, request: SetupRequest, strategy: DiLoCoStrategy) -> None:
        super().__init__(request, "diloco")
        self._settings = strategy.outer
        size = request.collectives.world_size
        # A separate process group, so that pending outer steps delay no other message.
        self._group = strategy.open_group([range(size)]) if size > 1 else None
        self._named = {
            name: parameter
            for name, parameter in self.original_module.named_parameters()
            if parameter.is_floating_point() or parameter.is_complex()
        }
        self._fragments = fragments_of(self._named, self._settings.fragments)
        self._outer = OuterOptimizer(self._settings, self._named)
        self._trained: set[str] = set()
        self._in_flight: list[_InFlight] = []

    def after_step(self) -> None:
        settings = self._settings
        self._trained.update(name for name, parameter in self._named.items() if parameter.requires_grad)
        for sent in self._in_flight:
            if self.steps == sent.sent_at + (settings.overlap_steps + 1) // 2:
                sent.exchange.advance()
        for fragment in range(settings.fragments):
            if settings.due(fragment, self.steps):
                self._send(fragment)
        while self._in_flight and self._in_flight[0].sent_at + settings.overlap_steps <= self.steps:
            self._apply(self._in_flight.pop(0))

    def _send(self, fragment: int) -> None:
        names = [name for name in self._fragments[fragment] if name in self._trained]
        self._trained.difference_update(names)
        flat = self._outer.gradients(names, self._named) if names else torch.zeros(0)
        exchange = MeanExchange(flat, self._group if names else None, self._settings.sent_as)
        self._in_flight.append(_InFlight(fragment, names, self.steps, exchange))

    def _apply(self, sent: _InFlight) -> None:
        frozen = {name for name in sent.names if not self._named[name].requires_grad}
        self._outer.step(sent.names, sent.exchange.result(), frozen)
        with torch.no_grad():
            for name in sent.names:
                parameter, outer = self._named[name], self._outer.parameters[name]
                value = torch.view_as_complex(outer) if parameter.is_complex() else outer
                if self._settings.mixing and name not in frozen:
                    parameter.lerp_(value.to(parameter), 1 - self._settings.mixing)
                else:
                    parameter.copy_(value)
        if sent.fragment == self._settings.fragments - 1:
            broadcast_coalesced(self.original_module.buffers())

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        # The replicas' own differ on purpose; what they agreed on may not.
        yield from ((f"outer parameter {name!r}", value) for name, value in self._outer.parameters.items())
        yield from ((f"outer momentum of {name!r}", value) for name, value in self._outer.momentum.items())

    # Checkpoint ---------------------------------------------------------------------------------

    def kept(self) -> tuple[Tensors, Tensors, dict[str, Any]]:
        shared = {f"outer/{name}": value for name, value in self._outer.parameters.items()}
        shared.update({f"momentum/{name}": value for name, value in self._outer.momentum.items()})
        for index, sent in enumerate(self._in_flight):
            shared[f"in_flight/{index}"] = sent.exchange.result()
        in_flight = [[sent.fragment, sent.names, sent.sent_at] for sent in self._in_flight]
        return shared, {}, {"in_flight": in_flight, "trained": sorted(self._trained)}

    def restore(self, shared: Tensors, own: Tensors | None, state: Mapping[str, Any]) -> None:
        self._in_flight = []
        self._trained = set(state.get("trained", ()))
        self._outer.begin(self._named)
        for name in self._named:
            if f"outer/{name}" in shared:
                self._outer.parameters[name] = shared[f"outer/{name}"]
            if f"momentum/{name}" in shared:
                self._outer.momentum[name] = shared[f"momentum/{name}"]
        for index, (fragment, names, sent_at) in enumerate(state.get("in_flight", ())):
            arrived = MeanExchange(shared[f"in_flight/{index}"], None, None)
            self._in_flight.append(_InFlight(fragment, names, sent_at, arrived))

    def release(self) -> None:
        for sent in self._in_flight:
            sent.exchange.result()  # a group may not be closed while something is on its way
        super().release()
        del self._in_flight, self._group, self._outer
