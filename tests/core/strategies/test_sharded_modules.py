"""Modules that a run left sharded are restored or refused, until they are set up again."""

import gc
from types import SimpleNamespace
from weakref import ref

import pytest
from torch import nn

from stratagem.errors import CombinationError
from stratagem.strategies.sharded_modules import LeftSharded, forget_shards, leave_sharded, shards_for

SHARDS = ["of rank 1"]


def ranks(world_size=2, rank=1):
    return SimpleNamespace(world_size=world_size, rank=rank)


def strategy(*takes):
    return SimpleNamespace(can_restore=lambda shards: shards in takes)


@pytest.fixture
def net():
    module = nn.Linear(1, 1)
    leave_sharded(module, LeftSharded("fsdp", 2, 1, SHARDS))
    return module


def test_a_whole_module_has_none():
    assert shards_for(nn.Linear(1, 1), strategy(), ranks()) is None


def test_the_same_strategy_in_the_same_place_takes_them_up(net):
    assert shards_for(net, strategy(SHARDS), ranks()) is SHARDS
    assert shards_for(nn.Linear(1, 1), strategy(SHARDS), ranks()) is None


def test_what_was_left_last_counts(net):
    leave_sharded(net, LeftSharded("fsdp", 2, 1, ["newer"]))
    assert shards_for(net, strategy(["newer"]), ranks()) == ["newer"]


@pytest.mark.parametrize(
    ("takes", "place", "who"),
    [
        ((), ranks(), "this strategy"),
        ((SHARDS,), ranks(4, 1), "4 processes in another order or number"),
        ((SHARDS,), ranks(2, 0), "2 processes in another order or number"),
    ],
)
def test_others_are_refused_with_what_to_do(net, takes, place, who):
    with pytest.raises(CombinationError) as raised:
        shards_for(net, strategy(*takes), place)
    said = str(raised.value)
    assert said.startswith(
        "this Linear is sharded since the run before, under strategy 'fsdp' in 2 processes, and "
        f"{who} can't set it up again: keep to that strategy"
    )


def test_shards_that_no_run_can_take_up_are_refused_even_by_who_takes_all():
    net = nn.Linear(1, 1)
    leave_sharded(net, LeftSharded("fsdp", 2, 1, None))
    with pytest.raises(CombinationError, match="this strategy can't set it up again"):
        shards_for(net, strategy(None), ranks())


def test_they_are_forgotten_once_it_is_set_up_again(net):
    forget_shards(net)
    assert shards_for(net, strategy(), ranks()) is None
    forget_shards(net)


def test_they_go_with_their_module():
    class Shards:
        pass

    net, shards = nn.Linear(1, 1), Shards()
    leave_sharded(net, LeftSharded("fsdp", 2, 1, shards))
    alive = ref(shards)
    del net, shards
    gc.collect()
    assert alive() is None
