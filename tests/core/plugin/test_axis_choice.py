"""Expressions of axes are read term by term."""

from __future__ import annotations

import pytest

from stratagem.errors import ConfigError
from stratagem.plugin.axis_choice import axis_terms, check_axis_size, is_expression


def test_an_expression_has_a_sign_that_names_do_not_have() -> None:
    assert is_expression("shard=2")
    assert is_expression("fsdp+tensor=2")
    assert not is_expression("some-package:ddp_spawn")


def test_terms_are_names_and_sizes_and_the_rest_without_one() -> None:
    assert list(axis_terms("a=2 + pkg:b=auto+c")) == [("a", 2), ("pkg:b", "auto"), ("c", "auto")]


@pytest.mark.parametrize("expression", ["shard=2+", "=2", "shard=", "+"])
def test_a_term_that_is_none_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError, match="which isn't NAME=SIZE: write axes as in 'shard=2\\+tensor=2'"):
        axis_terms(expression)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "two", "", None, "1.5", "-2"])
def test_a_size_that_is_none_is_refused(size: object) -> None:
    with pytest.raises(
        ConfigError, match="is not a number of ranks: give a positive whole number, or 'auto'"
    ):
        check_axis_size("shard", size)
