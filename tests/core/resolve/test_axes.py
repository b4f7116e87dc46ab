"""A run lists the axes that its strategy composes, with what brings them."""

from __future__ import annotations

import pytest

from stratagem import CombinationError, ConfigError, RunConfig
from stratagem.resolve.run import Run, assemble
from stratagem.runtime.plan import plan_lines


def run(strategy: str, devices: int = 4) -> Run:
    return assemble(RunConfig(strategy=strategy, accelerator="cpu", devices=devices), {})


def test_axes_are_in_the_plan_and_in_what_ranks_compare() -> None:
    made = run("tensor=2+shard=auto")
    versions = made.versions()
    assert versions["axis shard=auto"].startswith("stratagem-fsdp ")
    assert versions["axis tensor=2"].startswith("stratagem-model-parallel ")
    assert made.digest() != run("tensor=4+shard=auto").digest()
    lines = plan_lines(made)
    assert any(line.startswith("axis        shard=auto") for line in lines)
    assert any("mesh: shard 2 × tensor 2" in line for line in lines)


def test_a_strategy_without_axes_lists_none() -> None:
    assert not [name for name in run("ddp").versions() if name.startswith("axis")]


def test_sizes_are_refused_before_anything_is_launched() -> None:
    with pytest.raises(
        ConfigError, match="axes shard=3\\+tensor=2 make a mesh of 3 × 2, and the run has 4 processes"
    ):
        run("shard=3+tensor=2")


def test_what_an_axis_lacks_is_refused_as_for_a_strategy() -> None:
    with pytest.raises(CombinationError, match="'shard=2\\+tensor=2' can't do this: sparse gradients"):
        run("shard=2+tensor=2").require(["sparse_gradients"])
