"""A checkpoint that can't be written: a failure of the run, named by its path."""

import pytest

from stratagem.checkpoint.failing import writing
from stratagem.errors import CheckpointError


def fail(error):
    with pytest.raises(type(error)) as raised, writing("runs/a"):
        raise error
    assert raised.value is error
    return str(error), getattr(error, "exit_code", None)


def test_an_error_gets_the_path_and_the_exit_code_of_a_run():
    assert fail(CheckpointError("no space left")) == (
        "the checkpoint runs/a can't be written: no space left",
        1,
    )
    assert CheckpointError("another").exit_code == 2


def test_an_error_that_names_the_path_stays_as_it_is():
    assert fail(CheckpointError("runs/a is a file")) == ("runs/a is a file", 1)


def test_other_errors_are_left_alone():
    assert fail(ZeroDivisionError("oh")) == ("oh", None)


def test_what_goes_well_goes_on():
    with writing("runs/a"):
        written = True
    assert written
