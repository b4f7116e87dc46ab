"""Which layers are chosen, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_float8.selecting import select_layers
from torch import nn

from stratagem import ConfigError


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(16, 16), nn.Linear(16, 32)


class Own(nn.Linear):
    """Whose forward may be another."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.up, self.own = Attention(), nn.Linear(16, 32), Own(16, 16)
        self.head = nn.Linear(32, 10)


ALL = {"attention.query", "attention.value", "up"}


@pytest.mark.parametrize(
    ("modules", "skip", "chosen"),
    [
        (None, None, ALL),
        (None, "up", ALL - {"up"}),
        (None, ["Attention"], {"up"}),
        (None, Attention, {"up"}),
        (["attention"], "attention.value", {"attention.query"}),
        (lambda layer, name: layer.out_features == 32, None, {"attention.value", "up"}),
        ([nn.Linear], ["query", "up"][1:], ALL - {"up"}),
    ],
)
def test_layers_are_chosen_by_class_name_path_and_function(modules: Any, skip: Any, chosen: set[str]) -> None:
    assert set(select_layers(Net(), modules, skip).layers) == chosen


def test_every_layer_that_is_left_has_its_reason() -> None:
    selected = select_layers(Net(), None, "up")
    assert selected.left == {
        "up": "in skip",
        "own": "of a derived class",
        "head": "of sizes that 16 doesn't divide",
    }
    assert selected.summary() == (
        "2 of 5 linear layers compute in float8 (1 in skip, 1 of a derived class, 1 of sizes that 16 doesn't divide)"
    )
    assert select_layers(nn.Linear(16, 16), None, None).summary() == "1 of 1 linear layers compute in float8"
    assert select_layers(nn.ReLU(), None, None).reasons() == "it has no linear layer"


@pytest.mark.parametrize("what", ["modules", "skip"])
def test_a_choice_that_fits_nothing_is_refused(what: str) -> None:
    choice: dict[str, Any] = {"modules": None, "skip": None, what: "Attn"}
    with pytest.raises(
        ConfigError, match=rf"{what} names 'Attn', and Net has no linear layer there: it has attention"
    ):
        select_layers(Net(), **choice)
    with pytest.raises(ConfigError, match=rf"{what} has 3: give classes of modules"):
        select_layers(Net(), **{**choice, what: [3]})
