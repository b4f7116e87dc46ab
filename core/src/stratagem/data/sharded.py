"""`ShardedSource`: samples divided among ranks, in an order that is the same at any world size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from stratagem.data import generators
from stratagem.data.rebuild import LoaderOrder, with_sampler
from stratagem.data.sampler import ShardedSampler
from stratagem.data.sharing import warn
from stratagem.data.sources import Source, State

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives


class ShardedSource(Source):
    """Map-style data of a loader with one of torch's own samplers, which a `ShardedSampler` replaces.

    A position is a number of samples in an order that is the same at any world size and batch size.

    Attributes:
        last_batch_size: number of samples in an epoch's last batch, on each rank.
    """

    name = "sharded"

    def __init__(
        self, loader: DataLoader[Any], order: LoaderOrder, collectives: Collectives, seed: int
    ) -> None:
        self.order = order
        self.sampler = ShardedSampler(
            len(loader.dataset),  # type: ignore[arg-type]  # torch declares no length for datasets
            rank=collectives.rank,
            world_size=collectives.world_size,
            seed=seed,
            drop_last=loader.drop_last,
            shuffle=order.shuffle,
            num_samples=order.num_samples,
            replacement=order.replacement,
        )
        super().__init__(with_sampler(loader, self.sampler, drop_last=loader.drop_last), collectives, seed)
        # Without automatic batching, each item counts as a batch.
        size = self.batch_size or 1
        self._global_batch = size * self.world_size
        self.last_batch_size = size if loader.drop_last else len(self.sampler) % size or size
        self._base = (0, 0)
        self.description = self._describe()

    def _open(self, epoch: int, done: int, state: State | None) -> Iterator[Any]:
        samples = done * self._global_batch
        # An epoch ends in the order in which it began. The next one has the loader's order.
        self.sampler.shuffle = self.order.shuffle
        if state is not None:
            self.sampler.seed = state["seed"]
            samples = state["samples"] if self._is_same_data(state) else 0
            if samples:
                self.sampler.shuffle = _was_shuffled(state)
            if state["world_size"] == self.world_size:
                generators.restore_own(self.loader, state["generators"])
        self._base = (done, samples)
        self._generators = generators.capture_own(self.loader)
        self.sampler.start(epoch, samples)
        return self._iterate(epoch, samples // self._global_batch)

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        started = epoch == self._epoch
        base_done, base_samples = self._base if started else (0, 0)
        samples = base_samples + (done - base_done) * self._global_batch
        return {
            **self._state(epoch, done),
            "samples": min(samples, self.sampler.num_samples),
            "length": self.sampler.length,
            "num_samples": self.sampler.num_samples,
            "replacement": self.sampler.replacement,
            "shuffle": self.sampler.shuffle if started else self.order.shuffle,
            "seed": self.sampler.seed,
            "generators": self._generators if started else generators.capture_own(self.loader),
        }

    def done_after_resume(self, state: State) -> int:
        """Return the number of batches in a whole epoch minus those that are left."""
        if not self._is_same_data(state):
            warn(
                self.collectives,
                f"the checkpoint was written in mid-epoch over {_samples_of(state)}, and now there are "
                f"{_samples_of(self.state(0, 0))}: this epoch begins from its first sample",
            )
            return 0
        if state["samples"] and _was_shuffled(state) != self.order.shuffle:
            here, there = ("shuffled", "in order") if self.order.shuffle else ("in order", "shuffled")
            warn(
                self.collectives,
                f"the checkpoint's epoch was begun {there}, and the loader now reads {here}: this epoch goes on "
                f"{there}, so that each sample comes once, and the next ones are {here}",
            )
        length = self.length or 0
        self.sampler.start(state["epoch"], state["samples"])
        left = len(self.loader)
        self.sampler.start(state["epoch"])
        return length - left

    def _is_same_data(self, state: State) -> bool:
        return _drawn(state) == (self.sampler.length, self.sampler.num_samples, self.sampler.replacement)

    def _describe(self) -> str:
        sampler = self.sampler
        total = f"{sampler.length:,} samples"
        if not self.order.is_whole:
            how = " with replacement" if sampler.replacement else ""
            total = f"{sampler.num_samples:,} of {total}{how} in each epoch"
        order = f", shuffled with seed {sampler.seed}" if sampler.shuffle else " in order"
        if self.world_size == 1:
            return total + order
        over = f" over {self.world_size} ranks"
        repeated = 0 if sampler.drop_last else -sampler.num_samples % self.world_size
        # Padding repeats samples from the beginning of the order.
        return f"{total}{order}{over}" + (f", {repeated} repeated" if repeated else "")


def _was_shuffled(state: State) -> bool:
    # Checkpoints without the key are from versions that shuffled every epoch.
    return bool(state.get("shuffle", True))


def _drawn(state: State) -> tuple[int, int, bool]:
    length: int = state["length"]
    return length, state.get("num_samples", length), state.get("replacement", False)


def _samples_of(state: State) -> str:
    length, drawn, replacement = _drawn(state)
    how = " with replacement" if replacement else ""
    return f"{length:,} samples" if drawn == length and not how else f"{drawn:,} of {length:,} samples{how}"
