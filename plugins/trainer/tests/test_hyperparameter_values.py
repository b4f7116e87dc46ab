"""Hyperparameters of a checkpoint that was changed: nothing in them is called that the class didn't name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from small import Line
from stratagem_trainer.module.hyperparameter_values import decoded, named_by

from stratagem.errors import CheckpointError


@dataclass
class Settings:
    lr: float = 0.1


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        ({"@dataclass": [f"{__name__}:called", {"path": "x"}]}, "called, which is not a dataclass"),
        ({"@enum": [f"{__name__}:Settings", "x"]}, "is not an enum"),
        ({"@name": "os:system"}, "names os:system, which isn't in the signature"),
        ({"@partial": [{"@name": "os:system"}, ["true"], {}]}, "names os:system"),
        ({"@partial": 3}, "can't be restored"),
        ({"@namespace": [1]}, "can't be restored"),
        ({"@unknown": 1}, "can't be restored"),
        ([{"@path": {}}], "can't be restored"),
    ],
)
def test_a_forged_value_calls_nothing(forged: Any, words: str) -> None:
    named = named_by(Settled, [])
    assert f"{__name__}:called" in named
    with pytest.raises(CheckpointError, match=words):
        decoded(forged, named, "the hyperparameter 'a' of x")


def called(path: str = "") -> None:
    raise AssertionError("a checkpoint has called this")


class Settled(Line):
    def __init__(self, function: Any = called, settings: Settings | None = None) -> None:
        """Names a function and a dataclass."""
