"""Stages of pipelines by their names; test_pipelines.py has those of webdataset itself, where it is installed."""

from __future__ import annotations

import pytest

from stratagem.data.pipelines import begin_epoch, shares_samples


class detshuffle:  # webdataset's name
    epoch = -1


class batched:
    pass


def split_by_node():
    """A stage that is a function."""


class Pipeline:
    def __init__(self, *stages):
        self.pipeline = list(stages)


class Loader:
    def __init__(self, dataset):
        self.dataset = dataset


@pytest.mark.parametrize("wrap", [Pipeline, Loader, lambda dataset: Loader(Pipeline(dataset))])
def test_stages_that_count_epochs_begin_before_the_one_that_they_are_to_give(wrap):
    counting, other = detshuffle(), batched()
    loader = wrap(Pipeline(other, counting))
    for epoch in (0, 3, 1):
        begin_epoch(loader, epoch)
        assert counting.epoch == epoch - 1  # it adds one when it is iterated
        assert not hasattr(other, "epoch")


def test_a_stage_that_splits_shards_by_rank_shares_samples():
    assert shares_samples(Loader(Pipeline(batched(), split_by_node)))
    assert not shares_samples(Loader(Pipeline(batched(), detshuffle())))
    assert not shares_samples(Loader([split_by_node]))
