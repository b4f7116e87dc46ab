"""What ranks with copies compare."""

import torch

from stratagem.strategies.replica import Replica


def test_everybody_has_all_of_it_unless_it_says_how_it_is_shared_out():
    value = torch.ones(1)
    assert Replica("parameter 'weight'", value) == ("parameter 'weight'", value, "", "")
    stage = Replica("parameter 'weight'", value, "stages", "2")
    assert (stage.name, stage.value, stage.layout, stage.shard) == (
        "parameter 'weight'",
        value,
        "stages",
        "2",
    )


def test_it_can_be_distinguished_by_where_it_is():
    shards = {Replica("a", 1, "stages", shard) for shard in "0110"}
    assert sorted(each.shard for each in shards) == ["0", "1"]
