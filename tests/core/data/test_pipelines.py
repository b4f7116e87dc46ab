"""Stages of pipelines, with those of webdataset."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from stratagem.data.pipelines import begin_epoch, shares_samples, stages_of
from stratagem.data.sharing import is_rank_aware

wds = pytest.importorskip("webdataset", reason="make test-libraries")

SHARDS = "shards/{000..003}.tar"


def data(**how):
    return wds.WebDataset(SHARDS, **{"shardshuffle": False, **how})


def loaders(dataset):
    """The ways in which a dataset becomes a loader."""
    return [
        DataLoader(dataset, batch_size=2),
        wds.WebLoader(dataset, batch_size=None),
        wds.WebLoader(dataset, batch_size=None).shuffle(10),
        DataLoader(wds.DataPipeline(dataset, wds.shuffle(10))),
    ]


def test_a_pipeline_that_splits_shards_by_rank_shares_samples():
    for loader in loaders(data(nodesplitter=wds.split_by_node)):
        assert shares_samples(loader)
        assert is_rank_aware(loader)
    for loader in loaders(data()):
        assert not shares_samples(loader)
        assert not is_rank_aware(loader)
    assert all(map(shares_samples, loaders(data(resampled=True))))


def test_an_epoch_reaches_every_stage_that_shuffles_by_it():
    dataset = data(shardshuffle=4, detshuffle=True, seed=7).compose(wds.detshuffle(8, seed=7), wds.shuffle(8))
    for loader in loaders(dataset):
        begin_epoch(loader, 3)
        epochs = [stage.epoch for stage in stages_of(loader) if isinstance(stage, wds.detshuffle)]
        assert epochs == [2, 2]  # a stage adds one when it is iterated
        begin_epoch(loader, 0)


def test_other_loaders_have_no_stages():
    loader = DataLoader(range(4))
    assert not list(stages_of(loader))
    assert not shares_samples(loader)
    begin_epoch(loader, 1)
    assert not hasattr(loader, "epoch")
