"""Launchers' variables: read, or refused by name."""

import pytest
from stratagem_clusters.variables import first_integer, integer, missing, text

from stratagem.errors import UsageError


def test_a_text_is_read_without_spaces():
    assert text({"A": " x "}, "A", "mpirun") == "x"
    for environ in ({}, {"A": ""}, {"A": "  "}):
        with pytest.raises(
            UsageError, match=r"^A isn't set, which mpirun sets in every process; .*--environ"
        ):
            text(environ, "A", "mpirun")


@pytest.mark.parametrize(("value", "number"), [("0", 0), (" 7 ", 7), ("9" * 18, int("9" * 18)), ("007", 7)])
def test_a_whole_number_is_read(value, number):
    assert integer({"A": value}, "A", "srun") == number


@pytest.mark.parametrize("value", ["-1", "1.0", "+1", "1_0", "x", "9" * 19, "١", "1 2"])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(UsageError, match=r"^A is .*, but srun sets it to a whole number of at least 0"):
        integer({"A": value}, "A", "srun")


def test_the_first_variable_that_is_set_counts():
    names = ("A", "B", "C")
    assert first_integer({"B": "2", "C": "3"}, names, "srun") == 2
    assert first_integer({"A": " ", "C": "3"}, names, "srun") == 3
    assert first_integer({"A": "0", "B": "2"}, names, "srun") == 0
    with pytest.raises(UsageError, match=r"^A isn't set"):
        first_integer({"B": ""}, names, "srun")


def test_missing_is_any():
    assert not missing({"A": "", "B": "1"}, "A", "B")
    assert missing({"A": "1"}, "A", "B")
    assert not missing({})
