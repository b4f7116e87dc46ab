"""Convert between flat shards, one per process, and unsharded tensors in checkpoints, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.shards import padded_flat_shard

from stratagem import CheckpointReader
from stratagem.sdk.states import TensorInfo
from stratagem_xla.checkpoints import CpuReader

if TYPE_CHECKING:
    from stratagem import Collectives

SCALARS = ("step", "mu_product", "eta", "mu")
"""States that torch's optimizers have once per parameter, whatever its shape."""


def whole(shard: torch.Tensor, shape: torch.Size, collectives: Collectives) -> torch.Tensor:
    """Put a tensor together on the CPU of every rank. Collective.

    Args:
        shard: this rank's, on any device: of the flat tensor, or of its rows; the last ranks' end in padding.
        shape: of the whole.
        collectives: of all ranks.
    """
    flat = collectives.all_gather(shard.detach().cpu()).reshape(-1)
    return flat[: shape.numel()].reshape(shape)


def fill(shard: torch.Tensor, given: torch.Tensor, rank: int) -> None:
    """Fill rank `rank`'s shard in place from the unsharded tensor, and its padding with zeros."""
    with torch.no_grad():
        shard.copy_(padded_flat_shard(given, shard.numel(), rank).view(shard.shape))


def broadcast_coalesced(tensors: Iterable[torch.Tensor], collectives: Collectives) -> None:
    """Give every process the first one's values, in place. Collective."""
    if collectives.world_size > 1:
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(collectives.broadcast(tensor.detach()))


class FlatShardsReader(CheckpointReader):
    """Reads unsharded tensors and fills shards from them, one at a time; reports the shapes of shards.

    Args:
        reader: the opened checkpoint.
        shapes: by a parameter's name, the unsharded shape and that of this rank's shard.
        rank: this rank.
    """

    def __init__(
        self,
        reader: CheckpointReader,
        shapes: Mapping[str, tuple[torch.Size, torch.Size]],
        rank: int,
    ) -> None:
        self.reader, self.shapes, self.rank = CpuReader(reader, {}), shapes, rank
        self.state, self.world_size = reader.state, reader.world_size
        self._cut = {key: pair for key, info in reader.tensors.items() if (pair := self._pair(key, info))}
        self.tensors = {
            key: TensorInfo(tuple(self._cut[key][1]), info.dtype) if key in self._cut else info
            for key, info in reader.tensors.items()
        }

    def _pair(self, key: str, info: TensorInfo) -> tuple[torch.Size, torch.Size] | None:
        """The shapes of what is sharded under `key`; None where each rank has all of it."""
        kind, _, name = key.partition("/")
        if kind == "model":
            return self.shapes.get(name)
        if kind != "optimizer":
            return None
        name, _, state = name.partition("/")[2].rpartition("/")
        pair = self.shapes.get(name)
        if pair is None or info.shape != tuple(pair[0]) or (not info.shape and state in SCALARS):
            return None
        return pair

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        return self.reader.rank_state(rank)

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        for key, target in targets.items():
            pair = self._cut.get(key)
            if pair is None:
                self.reader.read({key: target})
                continue
            given = torch.empty(pair[0], dtype=target.dtype)
            self.reader.read({key: given})
            fill(target, given, self.rank)
