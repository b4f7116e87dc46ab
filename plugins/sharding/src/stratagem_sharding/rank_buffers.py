"""`RankBuffers`: refuses buffers that depend on a rank's own samples, or lets each rank keep its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from stratagem import ConfigError
from stratagem.errors import CheckpointError, DataError
from stratagem.sdk.shards import fingerprint
from stratagem_sharding.own_part import OwnPart
from stratagem_sharding.torch_private import own_buffers

if TYPE_CHECKING:
    from stratagem import CheckpointReader, Collectives

__all__ = ["RankBuffers", "check_buffers"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
NORMALIZATIONS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
"""Layers whose `STATISTICS` are taken from rank 0, as under DistributedDataParallel. Buffers of the same names in
other modules, such as a normalizer of observations, are compared between ranks."""
FIRST = 16
"""Each of the first `FIRST` forwards is checked; after that, those whose number is a power of two."""
EQUAL, LOCAL = "equal", "local"
PREFIX = "buffers/rank"
"""Prefix of the names of rank-local buffers in a checkpoint."""


def check_buffers(value: object) -> None:
    """Refuse an invalid value of a strategy's option `buffers`.

    Raises:
        ConfigError: it is neither "equal" nor "local".
    """
    if value not in (EQUAL, LOCAL):
        raise ConfigError(
            f"buffers={value!r} must be 'equal', by which all ranks have rank 0's, or 'local', by which each rank "
            "keeps its own"
        )


class RankBuffers:
    """Checks buffers for a strategy that gives all ranks rank 0's buffers.

    Args:
        module: the user's module; messages use its names of buffers.
        collectives: of all ranks.
        local: whether each rank keeps its own buffers.
        has_option: whether the strategy has the option `buffers`, which the error message then mentions.
    """

    def __init__(
        self,
        module: nn.Module,
        collectives: Collectives,
        *,
        local: bool = False,
        has_option: bool = True,
    ) -> None:
        self._module, self._collectives = module, collectives
        self._has_option = has_option
        self.are_local = local
        """Whether each rank keeps its own buffers."""
        self._forwards = 0
        self._checks = not local and collectives.world_size > 1 and self._has_any()

    def before_forward(self) -> None:
        """Compare buffers before a training forward, if this forward is to be checked. Collective if so."""
        if not self._checks:
            return
        self.compare_after(self._forwards)
        self._forwards += 1

    def compare_after(self, forwards: int) -> None:
        """Compare buffers after the first forwards, and more and more rarely after that. Collective if compared.

        Args:
            forwards: how many training forwards there have been, the same number on all ranks.
        """
        if 0 < forwards <= FIRST or (forwards and not forwards & (forwards - 1)):
            self.compare()

    def compare(self) -> None:
        """Compare between ranks the buffers that aren't running statistics. Collective.

        Raises:
            DataError: a buffer differs between ranks.
        """
        if not self._checks:
            return
        own = {name: self._described(buffer) for name, buffer in self._named()}
        ranks = self._collectives.gather_objects(own)
        for rank, theirs in enumerate(ranks):
            for name in {**ranks[0], **theirs}:
                if ranks[0].get(name) != theirs.get(name):
                    raise DataError(self._refusal(name, rank))

    def _refusal(self, name: str, rank: int) -> str:
        option = ""
        if self._has_option:
            option = ", or let each rank keep its own by the strategy's option buffers='local'"
        return (
            f"buffer {name!r} differs between ranks 0 and {rank}, and this strategy gives all ranks rank 0's: it "
            "holds values of a rank's own samples. Average it over ranks where you change it, as by "
            f"torch.distributed.all_reduce{option}"
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return this rank's own buffers for a checkpoint; empty if all ranks have rank 0's."""
        if not self.are_local or self._collectives.world_size == 1:
            return {}
        kept = self._module.state_dict(keep_vars=True)
        prefix = f"{PREFIX}{self._collectives.rank}/"
        return {f"{prefix}{name}": buffer for name, buffer in self._all_named() if name in kept}

    def load(self, reader: CheckpointReader) -> None:
        """Restore this rank's own buffers, if each rank keeps its own.

        Raises:
            CheckpointError: the checkpoint has the buffers of another number of ranks.
        """
        if not self.are_local:
            return
        saved = [OwnPart(reader, f"{PREFIX}{rank}/").tensors for rank in range(reader.world_size)]
        if not any(saved):
            return
        if reader.world_size != self._collectives.world_size:
            raise CheckpointError(
                f"{reader.path} has buffers of {reader.world_size} ranks that differ (buffers='local'), and this run "
                f"has {self._collectives.world_size}: resume with {reader.world_size} processes, or begin a new run "
                "with its weights"
            )
        part = OwnPart(reader, f"{PREFIX}{self._collectives.rank}/")
        targets = {name: buffer for name, buffer in self._all_named() if name in part.tensors}
        for name, buffer in targets.items():
            if tuple(buffer.shape) != tuple(part.tensors[name].shape):
                raise CheckpointError(
                    f"buffer {name!r} has shape {tuple(buffer.shape)} here, and {tuple(part.tensors[name].shape)} in "
                    f"{reader.path}: give it the same shape before the checkpoint is loaded, or register it with "
                    "persistent=False"
                )
        part.read({name: buffer.detach() for name, buffer in targets.items()})

    def _has_any(self) -> bool:
        """Whether there is a buffer to compare; a buffer that is None so far counts."""
        return any(
            not _is_statistic(each, name) and not _is_sharded(buffer)
            for each in self._module.modules()
            for name, buffer in own_buffers(each).items()
        )

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, buffer in self._all_named():
            owner, _, key = name.rpartition(".")
            if not _is_statistic(self._module.get_submodule(owner), key):
                yield name, buffer

    def _all_named(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, each) for name, each in self._module.named_buffers() if not _is_sharded(each))

    def _described(self, buffer: torch.Tensor) -> tuple[list[int], str, int]:
        number = fingerprint([buffer.detach()], self._collectives.device).item()
        return list(buffer.shape), str(buffer.dtype), int(number)


def _is_statistic(owner: nn.Module, name: str) -> bool:
    return name in STATISTICS and isinstance(owner, NORMALIZATIONS)


def _is_sharded(buffer: object) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(buffer, DTensor)
