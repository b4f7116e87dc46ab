"""Replicas that average their parameters with peers: decentralized, and low_precision_decentralized in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import torch
import torch.distributed as dist
from stratagem_sharding.drifting import DriftingPrepared, Tensors
from stratagem_sharding.mean_exchange import decoded, encoded, padded

from stratagem import SetupRequest
from stratagem_bagua.gradients import as_real


class PeersPrepared(DriftingPrepared):
    """Knows which parameters are trained; where others are than before, all begin again from one average."""

    has_copies = False

    def __init__(self, request: SetupRequest) -> None:
        super().__init__(request, "bagua")
        self._rank, self._size = request.collectives.rank, request.collectives.world_size
        self._names = self._trained()

    def _trained(self) -> list[str]:
        return [
            name for name, parameter in self.original_module.named_parameters() if parameter.requires_grad
        ]

    def follow(self) -> None:
        """Collective where other parameters are trained than before, on all ranks alike."""
        names = self._trained()
        if names != self._names:
            self.agree()
            self._names = names
            self.begin()

    def begin(self) -> None:
        """Begin from parameters that all ranks have alike."""

    def flat(self) -> torch.Tensor:
        """Return what was trained when ranks last agreed on that, as one tensor, at least float32."""
        values = [as_real(parameter.detach()).reshape(-1) for parameter in self._parameters_sent()]
        dtype = torch.float64 if any(v.dtype == torch.float64 for v in values) else torch.float32
        return torch.cat([v.to(dtype) for v in values]) if values else torch.zeros(0, device=self.device)

    @torch.no_grad()
    def fill(self, flat: torch.Tensor) -> None:
        """Give these parameters the values in `flat`."""
        start = 0
        for parameter in self._parameters_sent():
            target = as_real(parameter)
            target.copy_(flat[start : start + target.numel()].view(target.shape))
            start += target.numel()

    def _parameters_sent(self) -> list[torch.Tensor]:
        named = dict(self.original_module.named_parameters())
        return [named[name] for name in self._names]

    def _swap(self, sent: torch.Tensor, *peers: int) -> list[torch.Tensor]:
        """Send a tensor to each peer, and return what came from each."""
        received = [torch.empty_like(sent) for _ in peers]
        messages = [dist.P2POp(dist.isend, sent, peer) for peer in peers]
        messages += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in zip(received, peers)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        return received


class DecentralizedPrepared(PeersPrepared):
    """Averages parameters before an optimizer step, by gradients of the parameters before the average.

    D-PSGD (Lian et al., https://arxiv.org/abs/1705.09056), algorithm 1, with a complete graph or pairs that change.

    Args:
        request: as everywhere. Collective.
        shift_one: average with one peer, another one each time; with all ranks when False.
        interval: optimizer steps from one average to the next.
    """

    def __init__(self, request: SetupRequest, shift_one: bool, interval: int) -> None:
        super().__init__(request)
        self._shift_one, self._interval = shift_one, interval

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        if index == 0 and self._size > 1:
            self.follow()
            if self.steps % self._interval == 0:
                self._communicate()
        return super().step(index, closure)

    def after_step(self) -> None:
        pass

    def _communicate(self) -> None:
        flat = self.flat()
        if self._shift_one:
            peer = peer_of(self._rank, self._size, self.steps // self._interval)
            flat.add_(self._swap(flat, peer)[0]).div_(2)
        else:
            dist.all_reduce(flat)
            flat.div_(self._size)
        self.fill(flat)


class LowPrecisionDecentralizedPrepared(PeersPrepared):
    """Sends both neighbours in a ring, in 8 bits, how its parameters have changed.

    DCD-PSGD (Tang et al., https://arxiv.org/abs/1803.06443), algorithm 1: each rank keeps what its neighbours have,
    steps from the average of the three, and moves by what of the difference 8 bits can say.

    Args:
        request: as everywhere. Collective.
        interval: optimizer steps from one message to the next.
    """

    def __init__(self, request: SetupRequest, interval: int) -> None:
        super().__init__(request)
        self._interval = interval
        self.begin()

    def begin(self) -> None:
        flat = self.flat()
        # What this rank and its neighbours have sent so far.
        self._own_replica, self._left, self._right = flat, flat.clone(), flat.clone()

    def after_step(self) -> None:
        if self._size == 1:
            return
        self.follow()
        if self.steps % self._interval or not self._names:
            return
        own_replica, left, right = self._own_replica, self._left, self._right
        # As differences: what is equal everywhere stays as it is, to the last bit.
        difference = (
            self.flat().sub_(own_replica).add_((left - own_replica).add_(right - own_replica), alpha=1 / 3)
        )
        sent = encoded(padded(difference.float(), 1).view(1, -1), "int8")
        from_left, from_right = self._swap(sent, (self._rank - 1) % self._size, (self._rank + 1) % self._size)
        for replica, message in ((own_replica, sent), (left, from_left), (right, from_right)):
            replica.add_(decoded(message, "int8").view(-1)[: replica.numel()])
        self.fill(own_replica)

    def kept(self) -> tuple[Tensors, Tensors, dict[str, Any]]:
        return (
            {},
            {"own": self._own_replica, "left": self._left, "right": self._right},
            {"names": self._names},
        )

    def restore(self, shared: Tensors, own: Tensors | None, state: Mapping[str, Any]) -> None:
        self.begin()
        if own and state.get("names") == self._names:
            self._own_replica, self._left, self._right = (
                own[name].to(self.device) for name in ("own", "left", "right")
            )


def peer_of(rank: int, world_size: int, round_: int) -> int:
    """Return the peer in a round: each of the lower half meets another one of the upper half each time."""
    half = world_size // 2
    return half + (rank + round_) % half if rank < half else (rank - half - round_) % half
