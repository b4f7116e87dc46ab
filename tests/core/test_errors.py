"""Errors and what their messages are made of."""

import pickle

import pytest

from stratagem import errors
from stratagem.errors import SealError, StratagemError, UsageError, WorkerError, bytes_text, nearest, short

ALL = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, StratagemError)]


def test_short_leaves_the_middle_of_a_long_value_out():
    assert short("abc") == "'abc'"
    assert short("x" * 78) == repr("x" * 78)
    assert short("a" + "x" * 77 + "b") == f"'a{'x' * 38}…{'x' * 38}b' (81 characters)"
    assert short([1, 2, 3, 4], limit=8) == "[1, …, 4] (12 characters)"
    assert short(10**5000) == "a number of thousands of digits"


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (116224, "113.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**20, "1.0 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (3 * 2**50, "3072.0 TiB"),
    ],
)
def test_bytes_are_in_binary_units(count, said):
    assert bytes_text(count) == said


def test_the_nearest_names_or_all():
    assert nearest("lefd", ["left", "right"]) == "nearest: left"
    assert nearest("qqqq", iter(["left", "right"])) == "there is left, right"
    assert nearest("qqqq", []) == "there is none"
    assert nearest("name0", [f"name{i}" for i in range(1, 6)]).count(",") == 2


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_what_is_the_users_to_change_exits_with_2(error):
    in_a_run = {"NoneAnswerError", "WrongAnswerError"}
    mine = issubclass(error, (UsageError, SealError)) and error.__name__ not in in_a_run
    assert error.exit_code == (2 if mine else 1)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_errors_reach_other_processes_whole(error):
    again = pickle.loads(pickle.dumps(error("what was got")))
    assert (type(again), str(again)) == (error, "what was got")


def test_a_workers_error_keeps_who_failed():
    error = WorkerError("it failed", rank=3, host="node", traceback="Traceback", exit_code=9)
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error) == {"rank": 3, "host": "node", "traceback": "Traceback", "exit_code": 9}
    assert vars(WorkerError("x")) == {"rank": 0, "host": "", "traceback": "", "exit_code": 1}
