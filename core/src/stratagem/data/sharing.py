"""Detects loaders from which every rank would read the same batches."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from stratagem.data.pipelines import shares_samples

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives

# Attributes in which known datasets and samplers keep their rank or the number of ranks.
_PLACES = (
    "rank",
    "num_replicas",
    "world_size",
    "num_ranks",
    "num_shards",
    "shard_index",
    "shard_id",
    "process_index",
    "dp_rank",
    "_distributed",
)


def parts_of(loader: Any) -> dict[str, Any]:
    """Return the objects that decide what a loader reads, by name: the loader, its samplers, its dataset."""
    parts = {"loader": loader}
    batch_sampler = getattr(loader, "batch_sampler", None)
    for name, part in (
        ("batch_sampler", batch_sampler),
        ("batch_sampler.sampler", getattr(batch_sampler, "sampler", None)),
        ("sampler", getattr(loader, "sampler", None)),
        ("dataset", getattr(loader, "dataset", None)),
    ):
        if part is not None:
            parts[name] = part
    return parts


def reads_by_sampler(loader: Any) -> bool:
    """Whether indices made in this process decide what is read: a DataLoader over map-style data."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def is_rank_aware(loader: Any) -> bool:
    """Whether `loader` seems to read a different part of the data on each rank."""
    return shares_samples(loader) or any(
        getattr(part, place, None) is not None
        for name, part in parts_of(loader).items()
        if name != "dataset" or not reads_by_sampler(loader)
        for place in _PLACES
    )


def warn_of_same_data(loader: Any, collectives: Collectives, consequence: str) -> None:
    """Warn if several ranks would read the same batches.

    Args:
        loader: a loader that isn't divided among ranks.
        collectives: rank and number of ranks; nothing is sent.
        consequence: what happens then, as the end of a sentence.
    """
    if collectives.world_size == 1 or is_rank_aware(loader) or hasattr(loader, "load_state_dict"):
        return
    if reads_by_sampler(loader):
        what = f"the loader has its own sampler ({own_sampler(loader)})"
        instead = "use a sampler that shares the samples out, such as torch's DistributedSampler"
    else:
        what = f"the data are an iterable ({name_of(loader)}) that can't be shared out from outside"
        instead = "read another part on each rank (by an attribute `rank`, for one)"
    warn(
        collectives,
        f"{what}, so that all {collectives.world_size} ranks read the same, and {consequence}: {instead}, or "
        "say distributed_sampler=False (use_distributed_sampler=False in Trainer) if that is meant",
    )


def warn(collectives: Collectives, message: str) -> None:
    """Warn on one rank of the run. `collectives.rank` can't tell: ranks that share a model copy have the same."""
    if collectives.node_rank == collectives.local_rank == 0:
        warnings.warn(message, UserWarning, stacklevel=4)


def own_sampler(loader: Any) -> str:
    """Return the class name of the sampler that was passed to a DataLoader."""
    passed = loader.sampler if loader.batch_size is not None else loader.batch_sampler or loader.sampler
    return type(passed).__name__


def name_of(loader: Any) -> str:
    """Return a name for an iterable: its class's, or for a DataLoader that of the dataset's class."""
    return type(loader.dataset if isinstance(loader, DataLoader) else loader).__name__


def length_of(loader: Any) -> int | None:
    """Return how many batches an epoch of `loader` has; None if that isn't known for sure."""
    if isinstance(loader, DataLoader) and not reads_by_sampler(loader) and loader.num_workers:
        # The last batch of each worker may be smaller: torch's length is a guess.
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def batch_size_in(loader: Any) -> int | None:
    """Return the batch size that a loader or its batch sampler says it has."""
    for part in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(part, "batch_size", None)
        if isinstance(size, int):
            return size
    return None
