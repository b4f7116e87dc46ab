"""Random numbers that loader workers draw are those of the run that wasn't interrupted."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from threads import on_threads
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from stratagem import LocalCollectives
from stratagem.collectives.base import Collectives
from stratagem.data.train import TrainData
from stratagem.data.worker_seeds import WorkerSeeds

SAMPLES, BATCH = 24, 4


class Augmented(Dataset):
    """Its samples are what Python's, NumPy's and torch's generators give."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(
            [index, random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64
        )


class WithGenerator(Augmented):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.rand(1) for _ in range(SAMPLES))


def loader(kind: str, **how: object) -> DataLoader:
    if kind == "shuffled":
        return DataLoader(Augmented(), BATCH, shuffle=True, **how)
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Augmented(), BATCH, shuffle=True, **how)
    if kind == "stream":
        return DataLoader(Stream(), BATCH, **how)
    sampler = RandomSampler(Augmented(), generator=torch.Generator().manual_seed(3))
    return DataLoader(Augmented(), batch_sampler=BatchSampler(sampler, BATCH, False), **how)


def data(made: DataLoader) -> TrainData:
    return TrainData(made, collectives=LocalCollectives(torch.device("cpu")), seed=5)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize(
    ("kind", "workers", "persistent"),
    [
        (
            "stream",
            1,
            False,
        ),  # persistent workers of an iterable go on with the generators of the epoch before
        *(
            (kind, workers, workers > 1)
            for kind in ("shuffled", "own sampler", "stateful")
            for workers in (1, 2)
        ),
    ],
)
def test_a_resumed_epoch_equals_an_unbroken_one(kind: str, workers: int, persistent: bool) -> None:
    how = {"num_workers": workers, "persistent_workers": persistent}
    torch.manual_seed(1)
    whole = data(loader(kind, **how))
    list(whole.epoch(0))
    batches = whole.epoch(1)
    begun = [next(batches) for _ in range(2)]
    saved = whole.state(1, 2)
    expected = torch.cat([*begun, *batches])

    torch.manual_seed(99)
    resumed = data(loader(kind, **how))
    rest = list(resumed.epoch(1, resumed.done_after_resume(saved), saved))
    assert torch.equal(torch.cat([*begun, *rest]), expected)


def test_epochs_ranks_and_runs_draw_differently() -> None:
    def drawn(seed: int, epoch: int) -> torch.Tensor:
        made = DataLoader(Augmented(), BATCH, num_workers=1)
        own = TrainData(made, collectives=LocalCollectives(torch.device("cpu")), seed=seed)
        return torch.cat(list(own.epoch(epoch)))[:, 1:]

    first = drawn(0, 0)
    assert len(first.unique()) == first.numel()
    assert not torch.isin(drawn(0, 1), first).any()
    assert not torch.isin(drawn(1, 0), first).any()
    assert torch.equal(drawn(0, 0), first)

    def drawn_by_rank(collectives: Collectives) -> torch.Tensor:
        # Ranks are threads here: a forked worker inherits the locks that the other one holds.
        made = DataLoader(Augmented(), BATCH, num_workers=1, multiprocessing_context="spawn")
        own = TrainData(made, collectives=collectives, seed=0)
        return torch.cat(list(own.epoch(0)))[:, 1:]

    of_0, of_1 = on_threads(2, drawn_by_rank)
    assert not torch.isin(of_0, of_1).any()


def test_the_number_of_workers_changes_nothing() -> None:
    one, two = (torch.cat(list(data(loader("shuffled", num_workers=n)).epoch(0))) for n in (1, 2))
    assert torch.equal(one, two)


def test_the_users_loader_is_as_it_was() -> None:
    made = loader("own sampler", num_workers=1, worker_init_fn=_initialise)
    original = made.batch_sampler
    assert float(next(iter(data(made).epoch(0)))[0, 0]) >= 0
    assert made.batch_sampler is original
    assert made.worker_init_fn is _initialise


def _initialise(worker: int) -> None:
    assert torch.utils.data.get_worker_info().dataset is not None


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (loader("shuffled", num_workers=2), []),
        (DataLoader(WithGenerator(), BATCH), ["random numbers of the dataset"]),
        (DataLoader(Augmented(), None, num_workers=1), ["random numbers in loader workers"]),
        (loader("stream"), ["the data"]),
        ((torch.rand(2) for _ in range(3)), ["the data"]),
        ([torch.rand(2)], ["the data"]),
    ],
)
def test_what_isnt_exact_is_reported(made: DataLoader, what: list[str]) -> None:
    assert list(data(made).resumption()) == what


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_loader_keeps_no_random_numbers_of_its_workers() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    assert list(data(StatefulDataLoader(Stream(), BATCH, num_workers=1)).resumption()) == [
        "random numbers in loader workers"
    ]
    assert data(StatefulDataLoader(Stream(), BATCH)).resumption() == {}


def test_the_batch_sampler_is_as_the_loaders_own_while_an_epoch_begins():
    made = loader("shuffled", num_workers=2)
    seen = []

    def begin(begun):
        seen.append(begun.batch_sampler)
        return iter(())

    WorkerSeeds(5, 0).iterate(made, 0, 0, begin)
    (seeded,) = seen
    assert seeded is not made.batch_sampler
    assert (len(seeded), seeded.batch_size, seeded.drop_last) == (len(made.batch_sampler), BATCH, False)
    assert [type(batch).__name__ for batch in copy.copy(seeded)] == ["_SeededBatch"] * len(made.batch_sampler)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = seeded.no_such_attribute


def test_another_version_draws_the_same_numbers():
    """What a worker draws for the second batch of epoch 2, with seed 5: a run goes on with later versions."""
    batches = data(loader("shuffled", num_workers=1)).epoch(2)
    next(batches)
    assert next(batches)[0].tolist() == [10.0, 0.6877471094566691, 0.5290074226073967, 0.42590004205703735]


class WideSampler(BatchSampler):
    width = 7


def test_a_loader_finds_the_attributes_of_its_batch_sampler():
    sampler = WideSampler(RandomSampler(Augmented()), BATCH, False)
    made = DataLoader(Augmented(), batch_sampler=sampler, num_workers=1)
    assert WorkerSeeds(0, 0).iterate(made, 0, 0, lambda made: made.batch_sampler.width) == 7
