"""Whether ranks that read by themselves would all read the same, and what loaders say of themselves."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from stratagem.data.sharing import (
    batch_size_in,
    is_rank_aware,
    length_of,
    name_of,
    own_sampler,
    parts_of,
    reads_by_sampler,
    warn,
    warn_of_same_data,
)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


class Sized(Stream):
    def __len__(self):
        return 6


def place(world_size=2, local_rank=0, node_rank=0):
    return SimpleNamespace(world_size=world_size, local_rank=local_rank, node_rank=node_rank)


def test_the_objects_that_decide_have_names(numbers):
    source = numbers(4)
    loader = DataLoader(source, batch_size=2)
    assert parts_of(loader) == {
        "loader": loader,
        "batch_sampler": loader.batch_sampler,
        "batch_sampler.sampler": loader.sampler,
        "sampler": loader.sampler,
        "dataset": source,
    }
    single = DataLoader(source, batch_size=None)
    assert set(parts_of(single)) == {"loader", "sampler", "dataset"}
    assert parts_of([1]) == {"loader": [1]}


def test_only_a_dataloader_over_map_style_data_reads_by_a_sampler(numbers):
    assert reads_by_sampler(DataLoader(numbers(2)))
    assert not reads_by_sampler(DataLoader(Stream()))
    assert not reads_by_sampler([1, 2])
    assert not reads_by_sampler(SimpleNamespace(dataset=numbers(2)))


PLACES = (
    *("rank", "num_replicas", "world_size", "num_ranks", "num_shards"),
    *("shard_index", "shard_id", "process_index", "dp_rank", "_distributed"),
)


@pytest.mark.parametrize("name", PLACES)
def test_a_process_with_a_place_reads_a_part(name):
    stream = Stream()
    assert not is_rank_aware(DataLoader(stream))
    setattr(stream, name, None)
    assert not is_rank_aware(DataLoader(stream))
    setattr(stream, name, 0)
    assert is_rank_aware(DataLoader(stream))
    assert is_rank_aware(SimpleNamespace(**{name: 1}))


def test_a_sampler_may_know_its_part_and_a_map_style_dataset_is_not_asked(numbers):
    source = numbers(4)
    sampler = DistributedSampler(source, 2, 0)
    assert is_rank_aware(DataLoader(source, sampler=sampler))
    assert is_rank_aware(DataLoader(source, batch_sampler=BatchSampler(sampler, 2, False)))
    assert is_rank_aware(DataLoader(source, batch_size=None, sampler=sampler))
    source.rank = 0
    assert not is_rank_aware(DataLoader(source))


def test_a_own_sampler_is_named_with_what_to_use_instead(numbers):
    with pytest.warns(UserWarning, match="has its own sampler") as caught:
        warn_of_same_data(DataLoader(numbers(4), sampler=[0, 1]), place(3), "nothing is learnt")
    (warning,) = caught
    assert str(warning.message) == (
        "the loader has its own sampler (list), so that all 3 ranks read the same, and nothing is learnt: use a "
        "sampler that shares the samples out, such as torch's DistributedSampler, or say distributed_sampler=False "
        "(use_distributed_sampler=False in Trainer) if that is meant"
    )


def test_an_iterable_is_named_with_what_to_do_instead():
    with pytest.warns(
        UserWarning, match=r"an iterable \(Stream\) that can't be .*: read another part on each rank"
    ):
        warn_of_same_data(DataLoader(Stream()), place(), "so on")


def test_there_is_no_warning_without_need(numbers):
    class Stateful(list):
        def load_state_dict(self, state):
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_same_data([1], place(world_size=1), "")
        warn_of_same_data(SimpleNamespace(rank=0), place(), "")
        warn_of_same_data(Stateful(), place(), "")


@pytest.mark.parametrize(("local_rank", "node_rank", "count"), [(0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 0)])
def test_the_first_process_of_all_warns_for_the_others(local_rank, node_rank, count):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn(place(local_rank=local_rank, node_rank=node_rank), "look")
    assert [str(each.message) for each in caught] == ["look"] * count


def test_samplers_are_called_by_what_was_passed(numbers):
    source = numbers(4)
    sampler = DistributedSampler(source, 2, 0)
    batches = BatchSampler(SequentialSampler(source), 2, False)
    assert own_sampler(DataLoader(source, sampler=sampler)) == "DistributedSampler"
    assert own_sampler(DataLoader(source, batch_sampler=batches)) == "BatchSampler"
    assert own_sampler(DataLoader(source, batch_size=None, sampler=sampler)) == "DistributedSampler"


def test_iterables_are_called_by_what_is_read():
    assert name_of(DataLoader(Stream())) == "Stream"
    assert name_of([1]) == "list"


def test_a_length_is_known_only_if_it_is_certain(numbers):
    assert length_of(DataLoader(numbers(5), batch_size=2)) == 3
    assert length_of(DataLoader(numbers(5), batch_size=2, num_workers=2)) == 3
    assert length_of(DataLoader(Sized(), batch_size=4)) == 2
    assert length_of(DataLoader(Sized(), batch_size=4, num_workers=1)) is None
    assert length_of(DataLoader(Stream())) is None
    assert length_of([1, 2]) == 2
    assert length_of(iter([1])) is None

    class Refuses(Stream):
        def __len__(self):
            raise NotImplementedError

    assert length_of(Refuses()) is None


def test_the_size_of_a_batch_is_the_loaders_or_its_batch_samplers(numbers):
    source = numbers(4)
    assert batch_size_in(DataLoader(source, batch_size=3)) == 3
    batches = BatchSampler(SequentialSampler(source), 2, False)
    assert batch_size_in(DataLoader(source, batch_sampler=batches)) == 2
    assert batch_size_in(DataLoader(source, batch_size=None)) is None
    assert batch_size_in([torch.zeros(2)]) is None
    assert batch_size_in(SimpleNamespace(batch_size="many")) is None
