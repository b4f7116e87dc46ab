"""Builds a `DataLoader` again with another sampler."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from stratagem.errors import DataError

_SEQUENTIAL = "SequentialSampler"
_RANDOM = "RandomSampler"
# torchdata's StatefulDataLoader has its own samplers, which aren't subclasses of torch's.
_DEFAULTS = {
    "torch.utils.data.sampler": {_SEQUENTIAL, _RANDOM, "BatchSampler"},
    "torchdata.stateful_dataloader.sampler": {_RANDOM, "BatchSampler"},
}
_SETTINGS = (
    "dataset",
    "batch_size",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


@dataclass(frozen=True)
class LoaderOrder:
    """The order in which torch's own samplers read a dataset. The fields are arguments of `ShardedSampler`."""

    shuffle: bool
    num_samples: int | None = None
    replacement: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether an epoch has each sample exactly once."""
        return self.num_samples is None and not self.replacement


def has_default_sampler(loader: Any) -> bool:
    """Whether `loader` is a DataLoader over map-style data with its default samplers."""
    order = order_of(loader)
    return order is not None and order.is_whole


def order_of(loader: Any) -> LoaderOrder | None:
    """Return how a DataLoader over map-style data reads by torch's own samplers; None for any other loader.

    A RandomSampler with its own generator is excluded, since that generator decides the order.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    sampler: Any = loader.sampler
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is not None and (
        # A loader with a batch sampler of the user's has no batch size.
        loader.batch_size is None
        or not _is(batch_sampler, "BatchSampler")
        or batch_sampler.sampler is not sampler
    ):
        return None
    if getattr(sampler, "data_source", None) is not loader.dataset:
        return None
    if _is(sampler, _SEQUENTIAL):
        return LoaderOrder(shuffle=False)
    if not _is(sampler, _RANDOM):
        return None
    # torchdata's sampler makes its own generator if none is given.
    own_generator = loader.generator is None and type(sampler).__module__.startswith("torchdata.")
    if not own_generator and sampler.generator is not loader.generator:
        return None
    length, drawn = len(sampler.data_source), sampler.num_samples
    return LoaderOrder(True, None if drawn == length else drawn, sampler.replacement)


def keeps_order(loader: DataLoader[Any]) -> bool:
    """Whether a loader with a default sampler reads its dataset from the first sample to the last."""
    return _is(loader.sampler, _SEQUENTIAL)


def in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return the same loader over map-style data, read from the first sample to the last.

    Raises:
        DataError: the class can't be built again with another sampler.
    """
    return with_sampler(loader, SequentialSampler(loader.dataset), drop_last=loader.drop_last)  # type: ignore[arg-type]  # torch declares no length for datasets


def with_sampler(loader: DataLoader[Any], sampler: Sampler[int], *, drop_last: bool) -> DataLoader[Any]:
    """Return a new loader of the same class and settings that uses `sampler`.

    The arguments of a subclass's constructor are read from attributes with the same names.

    Args:
        loader: one that has an `order_of`.
        sampler: the new one.
        drop_last: whether an incomplete last batch is left out.

    Raises:
        DataError: the class can't be built again this way.
    """
    settings = {name: getattr(loader, name) for name in _SETTINGS if hasattr(loader, name)}
    settings.update(sampler=sampler, drop_last=drop_last and loader.batch_size is not None)
    arguments = _arguments(loader, settings)
    try:
        rebuilt = type(loader)(**arguments)
    except Exception as error:
        raise _refusal(loader, f"making another one raised {type(error).__name__}: {error}") from error
    if rebuilt.sampler is not sampler:
        raise _refusal(loader, "it doesn't use the sampler that it is given")
    # A subclass that wraps collate_fn would wrap it twice, and attributes that were set later would be lost.
    rebuilt.collate_fn = loader.collate_fn
    for name in vars(loader).keys() - vars(rebuilt).keys():
        setattr(rebuilt, name, getattr(loader, name))
    return rebuilt


def _arguments(loader: DataLoader[Any], settings: dict[str, Any]) -> dict[str, Any]:
    arguments, takes_any = {}, False
    for name, parameter in inspect.signature(type(loader).__init__).parameters.items():
        if name == "self" or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif name in settings:
            arguments[name] = settings[name]
        elif name in ("shuffle", "batch_sampler"):
            # A default of the subclass must not contradict the sampler.
            arguments[name] = None
        elif name in vars(loader):
            arguments[name] = vars(loader)[name]
        else:
            raise _refusal(loader, f"it keeps no attribute {name!r} with that argument's value")
    if takes_any:
        return {**settings, **arguments}
    if "sampler" not in arguments:
        raise _refusal(loader, "its constructor takes no sampler")
    return arguments


def _refusal(loader: object, why: str) -> DataError:
    return DataError(
        f"a {type(loader).__qualname__} can't be given the sampler that shares its samples among ranks, since "
        f"{why}: pass a plain DataLoader, or a sampler of your own, or switch this off with "
        "distributed_sampler=False (use_distributed_sampler=False in Trainer)"
    )


def _is(sampler: object, name: str) -> bool:
    kind = type(sampler)
    return kind.__name__ == name and name in _DEFAULTS.get(kind.__module__, ())
