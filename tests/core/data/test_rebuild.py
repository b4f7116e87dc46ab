"""Which loaders are built again, and that nothing of them is lost."""

import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from stratagem.data.rebuild import has_default_sampler, keeps_order, with_sampler
from stratagem.data.sampler import ShardedSampler
from stratagem.errors import DataError


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def start_worker(worker):
    np.random.seed(worker)


class Kept(DataLoader):
    """Keeps its own argument; passes the rest on."""

    def __init__(self, dataset, flavour, *args, **kwargs):
        super().__init__(dataset, *args, **kwargs)
        self.flavour = flavour


class Wrapping(DataLoader):
    def __init__(self, *args, collate_fn=None, **kwargs):
        super().__init__(*args, collate_fn=lambda samples: [collate_fn(samples)], **kwargs)


class Forgetful(DataLoader):
    def __init__(self, dataset, flavour, **kwargs):
        super().__init__(dataset, **kwargs)


class WithoutSampler(DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset)


class Deaf(DataLoader):
    def __init__(self, dataset, sampler=None):
        super().__init__(dataset)


def test_loaders_with_their_own_sampler_are_distinguished_from_others(numbers):
    data = numbers(6)
    generator = torch.Generator()
    default = [
        DataLoader(data),
        DataLoader(data, shuffle=True, batch_size=2),
        DataLoader(data, shuffle=True, generator=generator),
        DataLoader(data, batch_size=None),
        Kept(data, "sweet"),
    ]
    own = [
        DataLoader(Stream()),
        [1, 2],
        DataLoader(data, sampler=RandomSampler(data, replacement=True)),
        DataLoader(data, sampler=RandomSampler(data, num_samples=3)),
        DataLoader(data, sampler=RandomSampler(data, generator=generator)),
        DataLoader(data, sampler=SequentialSampler(range(3))),
        DataLoader(data, sampler=[0, 1]),
        DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 2, False)),
        DataLoader(data, batch_sampler=[[0, 1], [2]]),
    ]
    for batches in ([[0, 1], [2]], BatchSampler(SequentialSampler(data), 2, False)):
        # As classes do that set another one once the loader is made.
        loader = DataLoader(data, batch_size=2)
        object.__setattr__(loader, "batch_sampler", batches)
        own.append(loader)
    assert [has_default_sampler(loader) for loader in default] == [True] * len(default)
    assert [has_default_sampler(loader) for loader in own] == [False] * len(own)
    assert keeps_order(default[0])
    assert not keeps_order(default[1])


def test_every_setting_of_a_loader_is_kept(numbers):
    given = {
        "batch_size": 3,
        "num_workers": 1,
        "collate_fn": list,
        "pin_memory": True,
        "timeout": 7,
        "worker_init_fn": start_worker,
        "multiprocessing_context": "spawn",
        "generator": torch.Generator(),
        "prefetch_factor": 5,
        "persistent_workers": True,
        "in_order": False,
    }
    decided_by_us = {
        "dataset",
        "shuffle",
        "sampler",
        "batch_sampler",
        "drop_last",
        "pin_memory_device",
        "self",
    }
    # A setting that a later torch adds must be thought of here.
    assert set(inspect.signature(DataLoader.__init__).parameters) == set(given) | decided_by_us
    loader = DataLoader(numbers(7), shuffle=True, drop_last=True, **given)
    loader.note = "set later"
    sampler = ShardedSampler(7)
    rebuilt = with_sampler(loader, sampler, drop_last=True)
    assert type(rebuilt) is DataLoader
    assert rebuilt is not loader
    assert rebuilt.sampler is rebuilt.batch_sampler.sampler is sampler
    for name in (*given, "dataset", "drop_last", "note"):
        assert getattr(rebuilt, name) is getattr(loader, name), name
    assert len(rebuilt) == 2
    assert len(with_sampler(loader, sampler, drop_last=False)) == 3


def test_without_automatic_batching(numbers):
    rebuilt = with_sampler(
        DataLoader(numbers(3), batch_size=None), ShardedSampler(3, shuffle=False), drop_last=True
    )
    assert [int(item) for item in rebuilt] == [0, 1, 2]


def test_a_subclass_keeps_its_class_and_arguments(numbers):
    rebuilt = with_sampler(Kept(numbers(4), "sweet", 2), ShardedSampler(4, shuffle=False), drop_last=False)
    assert type(rebuilt) is Kept
    assert rebuilt.flavour == "sweet"
    assert [batch.tolist() for batch in rebuilt] == [[0, 1], [2, 3]]


def test_a_subclass_that_wraps_collate_fn_wraps_it_once(numbers):
    rebuilt = with_sampler(Wrapping(numbers(2), collate_fn=len), ShardedSampler(2), drop_last=False)
    assert next(iter(rebuilt)) == [1]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda data: Forgetful(data, "sweet"), "keeps no attribute 'flavour'"),
        (WithoutSampler, "takes no sampler"),
        (Deaf, "doesn't use the sampler"),
    ],
)
def test_a_subclass_that_can_t_be_built_again_is_refused(numbers, make, why):
    with pytest.raises(DataError, match=f"{why}.*distributed_sampler=False"):
        with_sampler(make(numbers(3)), ShardedSampler(3), drop_last=False)
