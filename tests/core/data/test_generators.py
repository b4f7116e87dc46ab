"""Generators of loaders and their samplers, and this process's own, kept and brought back."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler

from stratagem.data.generators import (
    capture_global,
    capture_own,
    global_kept,
    restore_global,
    restore_own,
)


class Draws(Sampler):
    """Has one generator of each kind."""

    def __init__(self, length):
        self.length = length
        self.torch, self.python, self.array = torch.Generator(), random.Random(3), np.random.default_rng(4)
        self.odd = 7

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.length))

    def draw(self):
        return (
            torch.rand((), generator=self.torch).item(),
            self.python.random(),
            self.python.gauss(0, 1),
            self.array.random(),
        )


class Stream(IterableDataset):
    def __init__(self):
        self.own = torch.Generator()

    def __iter__(self):
        return iter(range(3))


def test_each_kind_goes_on_where_it_was_captured(numbers):
    sampler = Draws(4)
    loader = DataLoader(numbers(4), sampler=sampler)
    sampler.draw()
    states = capture_own(loader)
    first = [sampler.draw() for _ in range(3)]
    restore_own(loader, states)
    assert [sampler.draw() for _ in range(3)] == first
    again = Draws(4)
    restore_own(DataLoader(numbers(4), sampler=again), states)
    assert [again.draw() for _ in range(3)] == first


def test_a_state_that_went_through_json_is_taken_up(numbers):
    sampler = Draws(4)
    loader = DataLoader(numbers(4), sampler=sampler)
    states = capture_own(loader)
    version, internal, gauss = states["sampler.python"]
    first = sampler.python.random()
    restore_own(loader, {"sampler.python": [version, list(internal), gauss]})
    assert sampler.python.random() == first


def test_they_are_named_by_where_they_are(numbers):
    source = numbers(4)
    source.own = torch.Generator()
    generator = torch.Generator()
    loader = DataLoader(source, sampler=RandomSampler(source, generator=generator), generator=generator)
    # A map-style dataset isn't read again; an iterable one is.
    assert set(capture_own(loader)) == {
        "loader.generator",
        "sampler.generator",
        "batch_sampler.sampler.generator",
    }
    assert set(capture_own(DataLoader(Stream()))) == {"dataset.own"}
    names = ("torch", "python", "array")
    assert set(capture_own(DataLoader(source, batch_sampler=Draws(4)))) == {
        f"batch_sampler.{n}" for n in names
    }
    assert capture_own([1, 2]) == {}


def test_what_was_not_captured_stays_as_it_is(numbers):
    sampler = Draws(4)
    loader = DataLoader(numbers(4), sampler=sampler)
    states = capture_own(loader)
    expected = sampler.draw()
    del states["sampler.array"], states["batch_sampler.sampler.array"]
    after = sampler.array.random()
    restore_own(loader, {**states, "somewhere.else": "odd"})
    assert sampler.draw()[:3] == expected[:3]
    assert expected[3] != after
    restore_own(loader, {})


def draw():
    return torch.rand(()).item(), random.random(), np.random.random()


def test_the_processs_own_are_captured_and_brought_back():
    states = capture_global()
    first = draw()
    restore_global(states)
    assert draw() == first


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_drawn_inside_leaves_no_trace_where_they_are_kept(keep):
    states = capture_global()
    first, second = draw(), draw()
    restore_global(states)
    with global_kept(keep):
        assert draw() == first
    assert draw() == (first if keep else second)


def test_they_come_back_after_an_error_and_by_default():
    states = capture_global()
    first = draw()
    restore_global(states)
    with pytest.raises(ZeroDivisionError), global_kept():
        _ = draw()[0] / 0
    assert draw() == first
