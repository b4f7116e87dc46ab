"""Which tensors share their memory, and which keys needn't be written."""

import torch
from stratagem_checkpoint.ties import find_aliases, local_ties


def test_tensors_that_are_the_same_memory_share_a_number():
    memory = torch.zeros(2, 3)
    numbers = local_ties(
        {
            "a": memory,
            "other": torch.zeros(2, 3),
            "b": memory,
            "row": memory[0],
            "second row": memory[1],
            "turned": memory.T,
            "again": memory.view(3, 2),
            "bits": memory.view(torch.int32),
            "empty": torch.zeros(0),
        }
    )
    assert numbers == {
        "a": 0,
        "other": 1,
        "b": 0,
        "row": 2,
        "second row": 3,
        "turned": 4,
        "again": 5,
        "bits": 6,
        "empty": -1,
    }


def test_a_key_is_an_alias_of_the_first_that_is_the_same_on_all_ranks():
    assert find_aliases([{"a": 0, "b": 0, "c": 1}]) == {"b": "a"}
    assert find_aliases([{"a": 0, "b": 0}, {"a": 0, "b": 1}]) == {}
    assert find_aliases([{"a": 0, "b": 0, "c": 0}, {"a": 2, "b": 2, "c": 2}]) == {"b": "a", "c": "a"}


def test_keys_of_other_ranks_and_empty_tensors_are_never_tied_by_chance():
    assert find_aliases([{"a": 0}, {"b": 0}]) == {}
    assert find_aliases([{"a": -1, "b": -1}]) == {}
    assert find_aliases([{"a": -1, "b": -1}, {"a": 3, "b": 3}]) == {"b": "a"}
    assert find_aliases([{"a": 0, "b": 0}, {"a": 0}]) == {}
