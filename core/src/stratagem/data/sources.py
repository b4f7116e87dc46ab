"""Sources: ways to read batches, and to continue after a resume. `sharded.py` has one more.

A source's state can be saved in a checkpoint, and has at least these keys:

- source: the name of the source that wrote it,
- epoch, done: the epoch, and how many of its batches each rank has consumed,
- world_size, batch_size: of the run that wrote it; batch_size is None if it isn't known,
- samples: how many samples of this epoch all ranks together have consumed; None if it isn't known,
- warm: whether the loader had been iterated before this epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem.data import generators
from stratagem.data.loaders import can_be_read_once
from stratagem.data.pipelines import begin_epoch
from stratagem.data.sharing import (
    batch_size_in,
    length_of,
    name_of,
    own_sampler,
    parts_of,
    reads_by_sampler,
    warn,
)
from stratagem.data.skipping import drop_first, iterate_after
from stratagem.data.worker_seeds import WorkerSeeds, own_generators, seeds_workers

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives

State = Mapping[str, Any]


class Source(ABC):
    """A loader whose epochs can begin at any batch.

    Attributes:
        name: marks its states.
        loader: the loader that is iterated.
        batch_size: samples per batch and rank; None if it isn't known.
        length: batches per epoch and rank; None if it isn't known.
        description: one clause for the printed plan.
    """

    name: str
    loader: Any
    description: str

    def __init__(self, loader: Any, collectives: Collectives, seed: int) -> None:
        self.loader, self.collectives = loader, collectives
        self._worker_seeds = WorkerSeeds(seed, collectives.rank)
        self.world_size = collectives.world_size
        self._each = f" on each of {self.world_size} ranks" if self.world_size > 1 else ""
        self.batch_size = batch_size_in(loader)
        self.length = length_of(loader)
        self._epoch: int | None = None
        self._warm = False

    def open(self, epoch: int, done: int, state: State | None) -> Iterator[Any]:
        """Return an iterator over `epoch` without its first `done` batches.

        Args:
            epoch: from 0.
            done: number of batches, with this run's batch size and world size.
            state: the state that a `Source` of the same name returned for the same epoch; None without a resume.
        """
        self._warm = self._epoch is not None or self._warm_up(state)
        for part in {id(part): part for part in parts_of(self.loader).values()}.values():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        begin_epoch(self.loader, epoch)
        with generators.global_kept(done > 0):
            iterator = self._open(epoch, done, state)
        self._epoch = epoch
        return iterator

    def _warm_up(self, state: State | None) -> bool:
        """Start persistent workers if an uninterrupted run would have started them already. Return whether it did.

        Starting them draws from random number generators, and reusing them doesn't.
        """
        if state is None or not state["warm"] or not getattr(self.loader, "persistent_workers", False):
            return False
        with generators.global_kept():
            self._iterate(0, 0)
        return True

    def _iterate(self, epoch: int, first: int, begin: Callable[[Any], Iterator[Any]] = iter) -> Iterator[Any]:
        """Begin the loader, whose batch sampler's first batch is number `first` of the epoch."""
        return self._worker_seeds.iterate(self.loader, epoch, first, begin)

    def resumption(self) -> dict[str, str]:
        """Return what a resumed run with as many ranks doesn't read exactly as before → the reason."""
        found: dict[str, str] = {}
        if can_be_read_once(self.loader):
            found["the data"] = f"a {type(self.loader).__name__} can be read only once"
        held = own_generators(self.loader) if reads_by_sampler(self.loader) else []
        if held:
            found["random numbers of the dataset"] = (
                f"its {held[0]!r} is a generator that no checkpoint keeps: draw from the global ones of Python, "
                "NumPy or torch instead"
            )
        if reads_by_sampler(self.loader) and self.loader.num_workers and not seeds_workers(self.loader):
            found["random numbers in loader workers"] = "items are read one by one, without batches"
        return found

    @abstractmethod
    def _open(self, epoch: int, done: int, state: State | None) -> Iterator[Any]: ...

    @abstractmethod
    def state(self, epoch: int, done: int) -> dict[str, Any]:
        """Return what `open` needs to continue after `done` batches of `epoch`."""

    def done_after_resume(self, state: State) -> int:
        """Convert the state's `done` to a number of batches with this run's batch size and world size."""
        done: int = state["done"]
        if self._has_same_batches(state):
            return done
        if state["samples"] is None or self.batch_size is None:
            warn(
                self.collectives,
                f"the checkpoint was written by {state['world_size']} ranks, now there are "
                f"{self.world_size}, and the size of a batch isn't known: going on after {done} batches of each "
                "rank, so that samples of this epoch may come twice or not at all",
            )
            return done
        samples: int = state["samples"]
        return samples // (self.batch_size * self.world_size)

    def _has_same_batches(self, state: State) -> bool:
        return (state["world_size"], state["batch_size"]) == (self.world_size, self.batch_size)

    def _state(self, epoch: int, done: int) -> dict[str, Any]:
        size = self.batch_size
        return {
            "source": self.name,
            "epoch": epoch,
            "done": done,
            "world_size": self.world_size,
            "batch_size": size,
            "samples": None if size is None else done * size * self.world_size,
            "warm": self._warm if epoch == self._epoch else self._epoch is not None,
        }


class ReplayedSource(Source):
    """Any other loader. A resumed epoch begins with the same random states, and its first batches are skipped.

    A position is a number of batches, and the states of the random number generators when the epoch began.
    """

    name = "replayed"

    def __init__(self, loader: Any, collectives: Collectives, seed: int) -> None:
        super().__init__(loader, collectives, seed)
        self._began: dict[str, Any] = {}
        reader = f"a {own_sampler(loader)}" if reads_by_sampler(loader) else f"a {name_of(loader)}"
        self.description = f"batches as {reader} gives them{self._each}"

    def _open(self, epoch: int, done: int, state: State | None) -> Iterator[Any]:
        if state is not None and state["world_size"] == self.world_size:
            generators.restore_own(self.loader, state["generators"])
            # At an epoch's beginning the caller has already restored the global generators.
            if done:
                generators.restore_global(state["global"])
        self._began = self._generators()
        return self._iterate(epoch, 0, partial(iterate_after, count=done))

    def resumption(self) -> dict[str, str]:
        found = super().resumption()
        if not reads_by_sampler(self.loader) and not found:
            found["the data"] = (
                f"a {name_of(self.loader)} keeps no place: its epoch is read again from the beginning, which is "
                "exact only if it gives the same again"
            )
        return found

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        began = self._began if epoch == self._epoch else self._generators()
        return {**self._state(epoch, done), **began}

    def _generators(self) -> dict[str, Any]:
        return {"generators": generators.capture_own(self.loader), "global": generators.capture_global()}


class StatefulSource(Source):
    """A loader with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader."""

    name = "stateful"

    def __init__(self, loader: Any, collectives: Collectives, seed: int) -> None:
        super().__init__(loader, collectives, seed)
        self.description = f"batches as a stateful {type(loader).__name__} gives them{self._each}"

    def _open(self, epoch: int, done: int, state: State | None) -> Iterator[Any]:
        if state is None or state["world_size"] != self.world_size:
            # Read the batches instead of skipping their indices, because the loader counts what it reads.
            return drop_first(self._or_again(iter(self.loader), done), done)
        if state["loader"] is not None:
            self.loader.load_state_dict(state["loader"])
        # A loader at its end would begin the next epoch.
        is_at_end = self.length is not None and done >= self.length
        return iter(()) if is_at_end else self._or_again(iter(self.loader), done)

    def _or_again(self, iterator: Iterator[Any], done: int) -> Iterator[Any]:
        """Iterate a second time if there is no batch: MosaicML's loaders yield none after an epoch's end."""
        is_empty = not done
        for batch in iterator:
            is_empty = False
            yield batch
        yield from self.loader if is_empty else ()

    def resumption(self) -> dict[str, str]:
        if not getattr(self.loader, "num_workers", 0):
            return {}
        return {"random numbers in loader workers": f"a {type(self.loader).__name__} keeps no state of them"}

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        never_read = self._epoch is None
        return {**self._state(epoch, done), "loader": None if never_read else self.loader.state_dict()}
