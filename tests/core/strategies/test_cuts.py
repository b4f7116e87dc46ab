"""The ways in which strategies cut: those of the type, each once."""

from typing import get_args

from stratagem import Strategy
from stratagem.strategies.cuts import CUTS, Cut


def test_all_ways_are_listed_once():
    assert CUTS == get_args(Cut) == ("rows", "columns", "flat", "parameters")


def test_a_strategy_that_says_nothing_may_cut_in_any():
    assert Strategy.optimizer_cuts == CUTS
